/* SPDX-License-Identifier: Apache-2.0 */
/* A fuzz target without a fuzzer: runs it over files, and over the files in folders; says how many.  An input that fails, or hangs, is named and ends it. */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"

enum { MAX_BYTES = 1 << 20, TIMEOUT_S = 60 };

static char path_now[4096];

/* Of a sanitizer's finding too, with abort_on_error. */
static void
on_end(int sig)
{
	if (write(STDERR_FILENO, "FAILED: ", 8) < 0 || write(STDERR_FILENO, path_now, strlen(path_now)) < 0 || write(STDERR_FILENO, "\n", 1) < 0)
		_exit(1);
	signal(sig, SIG_DFL);
	raise(sig);
}

static unsigned
run_file(const char *path)
{
	FILE *file = fopen(path, "rb");
	uint8_t *data = malloc(MAX_BYTES), *exact;
	size_t n;

	if (!file || !data) {
		fprintf(stderr, "%s: %s\n", path, strerror(errno));
		exit(1);
	}
	n = fread(data, 1, MAX_BYTES, file);
	fclose(file);
	/* So large and no larger: a sanitizer sees what reads beyond it. */
	exact = malloc(n ? n : 1);
	if (!exact)
		exit(1);
	memcpy(exact, data, n);
	free(data);
	snprintf(path_now, sizeof path_now, "%s", path);
	alarm(TIMEOUT_S);
	LLVMFuzzerTestOneInput(exact, n);
	free(exact);
	return 1;
}

static unsigned
run(const char *path)
{
	DIR *dir = opendir(path);
	struct dirent *entry;
	char name[4096];
	unsigned n = 0;

	if (!dir)
		return run_file(path);
	while ((entry = readdir(dir))) {
		if (*entry->d_name == '.')
			continue;
		snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
		n += run(name);
	}
	closedir(dir);
	return n;
}

int
main(int argc, char **argv)
{
	static const int ends[] = {SIGABRT, SIGALRM, SIGSEGV, SIGBUS};
	unsigned n = 0;

	for (unsigned i = 0; i < sizeof ends / sizeof ends[0]; i++)
		if (signal(ends[i], on_end) == SIG_ERR)
			return 1;
	for (int i = 1; i < argc; i++)
		n += run(argv[i]);
	printf("%s: %u inputs\n", argv[0], n);
	return n == 0;
}
