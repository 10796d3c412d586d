/* SPDX-License-Identifier: Apache-2.0 */
/* Channel: a packet and its descriptors arrive whole, or not at all; whatever comes, no descriptor is left open. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <CUnit/CUnit.h>

#include "proto/channel.h"
#include "proto/proto.h"

CU_pSuite test_channel_suite(void);

static int pair[2];
static int n_open_before;

static int
count_open(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int n = 0;

	while (readdir(dir) != NULL)
		n++;
	closedir(dir);
	return n;
}

static void
setup(void)
{
	n_open_before = count_open();
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		CU_FAIL_FATAL("socketpair");
}

static void
teardown(void)
{
	close(pair[0]);
	close(pair[1]);
	CU_ASSERT_EQUAL(count_open(), n_open_before);
}

/* n descriptors, all the same file: "/dev/null". */
static void
send_fds(unsigned n)
{
	int fds[PROTO_MAX_FDS], fd = open("/dev/null", O_RDWR | O_CLOEXEC);

	for (unsigned i = 0; i < n; i++)
		fds[i] = fd;
	CU_ASSERT_EQUAL(channel_send(pair[0], "x", 1, fds, n, 0), 0);
	close(fd);
}

/* Packets keep their bounds and order; the end is 0, or EPIPE without a signal. */
static void
test_packets_and_end(void)
{
	static char out[PROTO_MAX_PACKET], in[PROTO_MAX_PACKET];
	unsigned n_fds = 4;
	int fds[4];

	memset(out, 'z', sizeof(out));
	CU_ASSERT_EQUAL(channel_recv(pair[1], in, sizeof(in), NULL, NULL, MSG_DONTWAIT), -EAGAIN);
	CU_ASSERT_EQUAL(channel_send(pair[0], "one", 3, NULL, 0, 0), 0);
	CU_ASSERT_EQUAL(channel_send(pair[0], out, sizeof(out), NULL, 0, MSG_DONTWAIT), 0);
	CU_ASSERT_EQUAL(channel_recv(pair[1], in, sizeof(in), NULL, NULL, 0), 3);
	CU_ASSERT_EQUAL(memcmp(in, "one", 3), 0);
	CU_ASSERT_EQUAL(channel_recv(pair[1], in, sizeof(in), fds, &n_fds, 0), PROTO_MAX_PACKET);
	CU_ASSERT_EQUAL(memcmp(in, out, sizeof(in)), 0);
	CU_ASSERT_EQUAL(n_fds, 0);
	CU_ASSERT_EQUAL(channel_send(pair[0], "", 0, NULL, 0, 0), -EINVAL);
	close(pair[0]);
	CU_ASSERT_EQUAL(channel_recv(pair[1], in, sizeof(in), NULL, NULL, 0), 0);
	CU_ASSERT_EQUAL(channel_send(pair[1], "x", 1, NULL, 0, 0), -EPIPE);
	pair[0] = dup(pair[1]); /* for teardown */
}

/* As many as asked for: open, close-on-exec; also the most there can be. */
static void
test_descriptors(void)
{
	static const unsigned counts[] = {1, 2, 3, PROTO_MAX_FDS};
	char in[8];

	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
		int fds[PROTO_MAX_FDS];
		unsigned n_fds = counts[i];

		send_fds(counts[i]);
		CU_ASSERT_EQUAL(channel_recv(pair[1], in, sizeof(in), fds, &n_fds, 0), 1);
		CU_ASSERT_EQUAL(n_fds, counts[i]);
		for (unsigned k = 0; k < n_fds; k++) {
			CU_ASSERT_EQUAL(fcntl(fds[k], F_GETFD), FD_CLOEXEC);
			close(fds[k]);
		}
	}
	CU_ASSERT_EQUAL(channel_send(pair[0], "x", 1, NULL, PROTO_MAX_FDS + 1, 0), -EINVAL);
}

/* Fewer than there is room for are no error: the caller is told how many. */
static void
test_fewer_descriptors(void)
{
	unsigned n_fds = 8;
	int fds[8];
	char in[8];

	send_fds(2);
	CU_ASSERT_EQUAL(channel_recv(pair[1], in, sizeof(in), fds, &n_fds, 0), 1);
	CU_ASSERT_EQUAL(n_fds, 2);
	close(fds[0]);
	close(fds[1]);
}

/* More than asked for, down to none: refused, closed, and the next packet comes through. */
static void
test_stray_descriptors(void)
{
	for (unsigned room = 0; room < 6; room++) {
		for (unsigned more = 1; more < 4; more++) {
			unsigned n_fds = room;
			int fds[8];
			char in[8];

			send_fds(room + more);
			CU_ASSERT_EQUAL(channel_recv(pair[1], in, sizeof(in), fds, room > 0 ? &n_fds : NULL, 0), -EMSGSIZE);
			CU_ASSERT_EQUAL(n_fds, 0);
			CU_ASSERT_EQUAL(count_open(), n_open_before + 2);
			CU_ASSERT_EQUAL(channel_send(pair[0], "next", 4, NULL, 0, 0), 0);
			CU_ASSERT_EQUAL(channel_recv(pair[1], in, sizeof(in), NULL, NULL, 0), 4);
		}
	}
}

/* Too many bytes: refused whole, its descriptor with it. */
static void
test_too_long(void)
{
	unsigned n_fds = 4;
	int fds[4];
	char in[4];

	CU_ASSERT_EQUAL(channel_send(pair[0], "12345", 5, &pair[0], 1, 0), 0);
	CU_ASSERT_EQUAL(channel_recv(pair[1], in, sizeof(in), fds, &n_fds, 0), -EMSGSIZE);
	CU_ASSERT_EQUAL(n_fds, 0);
	CU_ASSERT_EQUAL(channel_send(pair[0], "12345", 5, NULL, 0, 0), 0);
	CU_ASSERT_EQUAL(channel_recv(pair[1], in, sizeof(in), NULL, NULL, 0), -EMSGSIZE);
}

/* An empty packet reads as the end, also with a descriptor. */
static void
test_empty_packet_with_descriptor(void)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr cmsg;
	} control = {{0}};
	struct msghdr msg = {.msg_control = &control, .msg_controllen = sizeof(control)};
	unsigned n_fds = 1;
	char in[4];
	int fd;

	control.cmsg = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
	memcpy(CMSG_DATA(&control.cmsg), &pair[0], sizeof(int));
	CU_ASSERT_EQUAL(sendmsg(pair[0], &msg, 0), 0);
	CU_ASSERT_EQUAL(channel_recv(pair[1], in, sizeof(in), &fd, &n_fds, 0), 0);
	CU_ASSERT_EQUAL(n_fds, 0);
}

/* Who wants no descriptors, but to know who sends: the sender is told, with descriptors the packet is refused, however many, and the next comes
 * through. */
static void
test_sender_and_stray_descriptors(void)
{
	static const unsigned counts[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, PROTO_MAX_FDS};
	struct ucred sender;
	char in[8];
	int on;

	for (on = 0; on < 2; on++) {
		CU_ASSERT_EQUAL(setsockopt(pair[1], SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)), 0);
		for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
			if (counts[i] > 0) {
				send_fds(counts[i]);
				CU_ASSERT_EQUAL(channel_recv_from(pair[1], in, sizeof(in), &sender, 0), -EMSGSIZE);
				CU_ASSERT_EQUAL(count_open(), n_open_before + 2);
			}
			CU_ASSERT_EQUAL(channel_send(pair[0], "next", 4, NULL, 0, 0), 0);
			CU_ASSERT_EQUAL(channel_recv_from(pair[1], in, sizeof(in), &sender, 0), 4);
			CU_ASSERT_EQUAL(sender.pid, on ? getpid() : 0);
		}
	}
	CU_ASSERT_EQUAL(channel_send(pair[0], "123456789", 9, &pair[0], 1, 0), 0);
	CU_ASSERT_EQUAL(channel_recv_from(pair[1], in, sizeof(in), &sender, 0), -EMSGSIZE);
}

/* A process at its limit of open files is told so, and has no more open than before. */
static void
test_no_descriptor_left(void)
{
	struct rlimit old, few;
	unsigned n_fds = 4;
	int fds[4], next;
	char in[4];

	send_fds(4);
	next = dup(pair[0]);
	close(next);
	getrlimit(RLIMIT_NOFILE, &old);
	few = old;
	few.rlim_cur = (rlim_t)next + 2;
	setrlimit(RLIMIT_NOFILE, &few);
	CU_ASSERT_EQUAL(channel_recv(pair[1], in, sizeof(in), fds, &n_fds, 0), -EMFILE);
	setrlimit(RLIMIT_NOFILE, &old);
	CU_ASSERT_EQUAL(n_fds, 0);
}

static pthread_t waiter;
static _Atomic unsigned n_signals;

static void
on_signal(int signo)
{
	(void)signo;
	n_signals++;
}

/* Interrupts the waiter many times over, whatever it is at, and only then sends what it waits for. */
static void *
interrupt_then_send(void *arg)
{
	(void)arg;
	for (unsigned n = 0; n < 100; n = n_signals) {
		pthread_kill(waiter, SIGUSR1);
		/* ThreadSanitizer puts a handler off until the call is over, which it may not be without another signal. */
		for (unsigned i = 0; n_signals == n && i < 10000; i++)
			sched_yield();
	}
	channel_send(pair[0], "x", 1, NULL, 0, 0);
	return NULL;
}

/* A signal handler that runs while a call waits does not end the wait. */
static void
test_interrupted(void)
{
	struct sigaction action = {.sa_handler = on_signal}, old;
	pthread_t thread;
	char in[4];

	sigaction(SIGUSR1, &action, &old);
	waiter = pthread_self();
	CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, interrupt_then_send, NULL), 0);
	CU_ASSERT_EQUAL(channel_recv(pair[1], in, sizeof(in), NULL, NULL, 0), 1);
	pthread_join(thread, NULL);
	sigaction(SIGUSR1, &old, NULL);
}

static void *
interrupt_once(void *arg)
{
	atomic_bool *is_over = arg;

	while (!atomic_load(is_over)) {
		pthread_kill(waiter, SIGUSR1);
		sched_yield();
	}
	return NULL;
}

/* A wait ends with the packet, with the time that the socket has for it, or with a signal, after which its caller looks about. */
static void
test_wait(void)
{
	struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, old;
	struct timeval little = {.tv_usec = 1000}, much = {.tv_sec = 100};
	atomic_bool is_over = false;
	pthread_t thread;
	char in[4];

	CU_ASSERT_EQUAL(channel_send(pair[0], "x", 1, NULL, 0, 0), 0);
	CU_ASSERT_EQUAL(channel_wait(pair[1], in, sizeof(in), NULL, NULL), 1);
	CU_ASSERT_EQUAL(setsockopt(pair[1], SOL_SOCKET, SO_RCVTIMEO, &little, sizeof(little)), 0);
	CU_ASSERT_EQUAL(channel_wait(pair[1], in, sizeof(in), NULL, NULL), -EAGAIN);
	CU_ASSERT_EQUAL(setsockopt(pair[1], SOL_SOCKET, SO_RCVTIMEO, &much, sizeof(much)), 0);
	sigaction(SIGUSR1, &action, &old);
	waiter = pthread_self();
	CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, interrupt_once, &is_over), 0);
	CU_ASSERT_EQUAL(channel_wait(pair[1], in, sizeof(in), NULL, NULL), -EINTR);
	atomic_store(&is_over, true);
	pthread_join(thread, NULL);
	sigaction(SIGUSR1, &old, NULL);
}

CU_pSuite
test_channel_suite(void)
{
	CU_pSuite suite = CU_add_suite_with_setup_and_teardown("channel", NULL, NULL, setup, teardown);

	CU_ADD_TEST(suite, test_packets_and_end);
	CU_ADD_TEST(suite, test_descriptors);
	CU_ADD_TEST(suite, test_fewer_descriptors);
	CU_ADD_TEST(suite, test_stray_descriptors);
	CU_ADD_TEST(suite, test_too_long);
	CU_ADD_TEST(suite, test_empty_packet_with_descriptor);
	CU_ADD_TEST(suite, test_sender_and_stray_descriptors);
	CU_ADD_TEST(suite, test_no_descriptor_left);
	CU_ADD_TEST(suite, test_interrupted);
	CU_ADD_TEST(suite, test_wait);
	return suite;
}
