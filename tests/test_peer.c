/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which process is a session's (I5), on kernels without SO_PEERPIDFD: only the one that said HELLO may attach, and proves by the nonce that it lived on.
 * And descriptors that peers send, on kernels without SO_PASSRIGHTS: slabd refuses and closes them.
 *
 * A slabd runs in a thread of this process; the peers are children that hold the same socket.
 */
#include <CUnit/CUnit.h>

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/channel.h"
#include "proto/codec.h"
#include "server/session.h"
#include "server/slabd.h"

CU_pSuite test_peer_suite(void);

struct daemon_thread {
	char folder[64];
	char socket[96];
	struct slabd *slabd;
	pthread_t thread;
};

static void *
serve(void *arg)
{
	struct daemon_thread *d = arg;

	return slabd_run(d->slabd) == 0 ? NULL : d;
}

static int
daemon_start(struct daemon_thread *d)
{
	struct slabd_options o = {
		.n_threads = 1,
		.is_old_kernel = true,
		.n_arenas = 1,
		.arenas = {{.name = "default", .limit_bytes = 4 << 20, .page_kind = LADDER_4K}},
	};
	char why[256];

	strcpy(d->folder, "/tmp/slabd-peer-XXXXXX");
	if (!mkdtemp(d->folder))
		return -1;
	snprintf(d->socket, sizeof d->socket, "%s/s", d->folder);
	o.socket = d->socket;
	if (slabd_new(&d->slabd, &o, why, sizeof why) < 0) {
		fprintf(stderr, "%s\n", why);
		return -1;
	}
	return pthread_create(&d->thread, NULL, serve, d);
}

static void
daemon_stop(struct daemon_thread *d)
{
	char command[128];

	slabd_stop(d->slabd);
	pthread_join(d->thread, NULL);
	slabd_free(d->slabd);
	snprintf(command, sizeof command, "rm -rf %s", d->folder);
	CU_ASSERT_EQUAL(system(command), 0);
}

static enum proto_status
call(int fd, enum proto_op op, const union proto_request *request, union proto_reply *reply)
{
	unsigned char buf[4096];
	char sentence[PROTO_SENTENCE_BYTES];
	int fds[PROTO_MAX_FDS], n = proto_pack_request(buf, sizeof buf, op, 1, request);
	enum proto_status status = PROTO_STATUS_IO;
	unsigned n_fds = PROTO_MAX_FDS;
	uint32_t id;
	ssize_t got;

	if (n < 0 || channel_send(fd, buf, (size_t)n, NULL, 0, 0) < 0)
		return PROTO_STATUS_IO;
	got = channel_recv(fd, buf, sizeof buf, fds, &n_fds, 0);
	if (got <= 0 || proto_unpack_reply(buf, (size_t)got, op, &id, &status, reply, sentence, sizeof sentence) < 0)
		return PROTO_STATUS_IO;
	for (unsigned i = 0; i < n_fds; i++)
		close(fds[i]);
	return status;
}

static int
connect_to(const struct daemon_thread *d)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct timeval timeout = {10, 0};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	strcpy(address.sun_path, d->socket);
	if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) < 0 ||
	    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout) < 0)
		return -1;
	return fd;
}

static enum proto_status
hello(int fd, uint64_t *noncep)
{
	const union proto_request request = {.hello = {.version = PROTO_VERSION, .layout_hash = layout_hash, .library = "test"}};
	union proto_reply reply = {0};
	enum proto_status status = call(fd, PROTO_OP_HELLO, &request, &reply);

	*noncep = reply.hello.nonce;
	return status;
}

static enum proto_status
attach(int fd, uint64_t nonce)
{
	const union proto_request request = {.attach = {.arena = "default", .label = "test", .nonce = nonce}};
	union proto_reply reply;

	return call(fd, PROTO_OP_ATTACH, &request, &reply);
}

/* In a child; its status comes back. */
static enum proto_status
attach_in_child(int fd, uint64_t nonce)
{
	int status;
	pid_t pid = fork();

	if (pid == 0)
		_exit((int)attach(fd, nonce));
	return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? (enum proto_status)WEXITSTATUS(status) : PROTO_STATUS_IO;
}

/* Sessions that there are; waits, at most 10 s, for so many. */
static unsigned
sessions(struct daemon_thread *d, unsigned wanted)
{
	unsigned n = 0;

	for (int i = 0; i < 1000; i++) {
		pthread_rwlock_rdlock(&d->slabd->arenas[0]->sessions_lock);
		n = d->slabd->arenas[0]->n_sessions;
		pthread_rwlock_unlock(&d->slabd->arenas[0]->sessions_lock);
		if (n == wanted)
			break;
		usleep(10000);
	}
	return n;
}

static void
test_the_right_process_attaches(void)
{
	struct daemon_thread d;
	uint64_t nonce;
	int fd;

	CU_ASSERT_EQUAL_FATAL(daemon_start(&d), 0);
	fd = connect_to(&d);
	CU_ASSERT_EQUAL(hello(fd, &nonce), PROTO_STATUS_OK);
	CU_ASSERT_NOT_EQUAL(nonce, 0);
	CU_ASSERT_EQUAL(attach(fd, nonce), PROTO_STATUS_OK);
	CU_ASSERT_EQUAL(sessions(&d, 1), 1);
	close(fd);
	CU_ASSERT_EQUAL(sessions(&d, 0), 0);
	daemon_stop(&d);
}

static void
test_a_wrong_nonce_is_refused(void)
{
	struct daemon_thread d;
	uint64_t nonce;
	int fd;

	CU_ASSERT_EQUAL_FATAL(daemon_start(&d), 0);
	fd = connect_to(&d);
	CU_ASSERT_EQUAL(hello(fd, &nonce), PROTO_STATUS_OK);
	CU_ASSERT_EQUAL(attach(fd, nonce + 1), PROTO_STATUS_ACCESS);
	CU_ASSERT_EQUAL(attach(fd, 0), PROTO_STATUS_ACCESS);
	CU_ASSERT_EQUAL(attach(fd, nonce), PROTO_STATUS_OK);
	close(fd);
	daemon_stop(&d);
}

/* The parent said HELLO; what a child sends on the same socket does not make the parent's death its own. */
static void
test_another_process_of_the_socket_is_refused(void)
{
	struct daemon_thread d;
	uint64_t nonce;
	int fd;

	CU_ASSERT_EQUAL_FATAL(daemon_start(&d), 0);
	fd = connect_to(&d);
	CU_ASSERT_EQUAL(hello(fd, &nonce), PROTO_STATUS_OK);
	CU_ASSERT_EQUAL(attach_in_child(fd, nonce), PROTO_STATUS_ACCESS);
	close(fd);
	daemon_stop(&d);
}

/* The child that said HELLO is dead when its number is looked at: the session ends, though we hold its socket. */
static void
test_a_dead_process_ends_though_its_socket_is_held(void)
{
	struct daemon_thread d;
	uint64_t nonce;
	int fd, status = -1;
	pid_t pid;

	CU_ASSERT_EQUAL_FATAL(daemon_start(&d), 0);
	fd = connect_to(&d);
	pid = fork();
	if (pid == 0)
		_exit(hello(fd, &nonce) == PROTO_STATUS_OK && attach(fd, nonce) == PROTO_STATUS_OK ? 0 : 1);
	CU_ASSERT_EQUAL(waitpid(pid, &status, 0), pid);
	CU_ASSERT_EQUAL(status, 0);
	CU_ASSERT_EQUAL(sessions(&d, 0), 0);
	close(fd);
	daemon_stop(&d);
}

static int
count_open(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int n = 0;

	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

/* STATUS, with so many copies of the descriptor. */
static void
send_status_with(int fd, int stray, unsigned n)
{
	static union {
		struct cmsghdr head;
		char bytes[CMSG_SPACE(253 * sizeof(int))];
	} control;
	const union proto_request request = {0};
	unsigned char packet[64];
	int length = proto_pack_request(packet, sizeof packet, PROTO_OP_STATUS, 1, &request);
	struct iovec iov = {packet, (size_t)length};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = CMSG_SPACE(n * sizeof(int))};

	control.head = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(n * sizeof(int))};
	for (unsigned i = 0; i < n; i++)
		memcpy(CMSG_DATA(&control.head) + i * sizeof(int), &stray, sizeof stray);
	CU_ASSERT_EQUAL(sendmsg(fd, &m, 0), length);
}

/* One of each kind; returns how many. */
static unsigned
open_kinds(const struct daemon_thread *d, int *fds)
{
	unsigned n = 0;

	CU_ASSERT_EQUAL_FATAL(pipe2(fds, O_NONBLOCK), 0);
	CU_ASSERT_EQUAL_FATAL(socketpair(AF_UNIX, SOCK_STREAM, 0, fds + 2), 0);
	n = 4;
	fds[n++] = open(d->folder, O_RDONLY | O_DIRECTORY);
	fds[n++] = open("/proc/self/exe", O_RDONLY);
	fds[n++] = open("/dev/null", O_RDWR);
	fds[n++] = memfd_create("stray", MFD_CLOEXEC);
	fds[n++] = connect_to(d);
	for (unsigned i = 0; i < n; i++)
		CU_ASSERT_FATAL(fds[i] >= 0);
	return n;
}

/* Of whatever kind they are, and however many come with a packet, up to the kernel's 253: it is refused, none stays open, and the connection is still good. */
static void
test_descriptors_are_closed(void)
{
	static const unsigned counts[] = {1, 2, 4, 5, 100, 253};
	const union proto_request request = {0};
	union proto_reply reply = {0};
	struct daemon_thread d;
	int fd, kinds[16], n_open;
	unsigned n_sent = 0, n_kinds;
	uint64_t nonce;

	CU_ASSERT_EQUAL_FATAL(daemon_start(&d), 0);
	fd = connect_to(&d);
	CU_ASSERT_EQUAL(hello(fd, &nonce), PROTO_STATUS_OK);
	n_kinds = open_kinds(&d, kinds);
	/* That of its own connection is slabd's too by then. */
	CU_ASSERT_EQUAL(hello(kinds[n_kinds - 1], &nonce), PROTO_STATUS_OK);
	n_open = count_open();
	for (unsigned i = 0; i < 20 * sizeof counts / sizeof counts[0]; i++) {
		send_status_with(fd, kinds[i % n_kinds], counts[i % (sizeof counts / sizeof counts[0])]);
		n_sent++;
		/* The next packet is answered, so the one before has been dealt with. */
		CU_ASSERT_EQUAL(call(fd, PROTO_OP_STATUS, &request, &reply), PROTO_STATUS_OK);
		CU_ASSERT_EQUAL(reply.status.n_bad_packets, n_sent);
		CU_ASSERT_EQUAL(count_open(), n_open);
	}
	/* Our end was the last one. */
	close(kinds[1]);
	CU_ASSERT_EQUAL(read(kinds[0], &nonce, 1), 0);
	close(kinds[0]);
	for (unsigned i = 2; i < n_kinds; i++)
		close(kinds[i]);
	close(fd);
	daemon_stop(&d);
}

CU_pSuite
test_peer_suite(void)
{
	CU_pSuite suite = CU_add_suite("peer", NULL, NULL);

	CU_add_test(suite, "the right process attaches", test_the_right_process_attaches);
	CU_add_test(suite, "a wrong nonce is refused", test_a_wrong_nonce_is_refused);
	CU_add_test(suite, "another process of the socket is refused", test_another_process_of_the_socket_is_refused);
	CU_add_test(suite, "a dead process ends though its socket is held", test_a_dead_process_ends_though_its_socket_is_held);
	CU_add_test(suite, "descriptors are closed", test_descriptors_are_closed);
	return suite;
}
