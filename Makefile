# SPDX-License-Identifier: Apache-2.0
# Builds slabd, libslabclient and slabctl. `make help` lists the targets. Objects lie in build/$(VARIANT)/.

VERSION = 0.1.0
SOVERSION = 0
PREFIX ?= /usr/local
DESTDIR ?=
BINDIR = $(PREFIX)/bin
SBINDIR = $(PREFIX)/sbin
LIBDIR = $(PREFIX)/lib
INCLUDEDIR = $(PREFIX)/include
SYSTEMDDIR = $(PREFIX)/lib/systemd/system
SYSUSERSDIR = $(PREFIX)/lib/sysusers.d
TMPFILESDIR = $(PREFIX)/lib/tmpfiles.d
MANDIR = $(PREFIX)/share/man
# A packager's /usr has its settings in /etc, as systemd and the FHS have it.
SYSCONFDIR = $(if $(filter /usr,$(PREFIX)),/etc,$(PREFIX)/etc)

CC ?= gcc
CFLAGS ?= -O2 -g
VARIANT ?= release
B = build/$(VARIANT)

WARN = -Wall -Wextra -Wshadow -Wundef -Wvla -Wstrict-prototypes -Wmissing-prototypes -Wcast-qual -Wpointer-arith
ifdef CI
WARN += -Werror
endif
# C_EXTRA, LD_EXTRA: what a variant adds (check-asan, check-tsan, the steps build).
C_EXTRA =
LD_EXTRA =
# -fno-plt: a call into a library takes a line less of the instruction cache; what runs once in a while finds that cold (tests/check-request.sh).
C_ALL = -std=gnu11 -D_GNU_SOURCE $(WARN) -I. -I$(B) -fPIC -fno-plt -pthread $(CFLAGS) $(C_EXTRA)
LD_ALL = -pthread $(LDFLAGS) $(LD_EXTRA)

PC_SERVER := libevent msgpack libsystemd
SERVER_LIBS = $(shell pkg-config --libs $(PC_SERVER)) -lnuma -linih
CLIENT_LIBS = $(shell pkg-config --libs msgpack)

SHM_SRC = shm/barn.c shm/segment.c
PROTO_SRC = proto/codec.c proto/channel.c
SERVER_SRC = \
	server/access.c \
	server/adopt.c \
	server/arena.c \
	server/arena_adopt.c \
	server/audit.c \
	server/bitset.c \
	server/cache.c \
	server/census.c \
	server/cgroup.c \
	server/claim.c \
	server/config.c \
	server/conn.c \
	server/drain.c \
	server/ephemeral.c \
	server/geometry.c \
	server/grant.c \
	server/inspect.c \
	server/ladder.c \
	server/ledger.c \
	server/listener.c \
	server/log.c \
	server/node.c \
	server/orphan.c \
	server/pages.c \
	server/presence.c \
	server/profile.c \
	server/quota.c \
	server/readers.c \
	server/reaper.c \
	server/recall.c \
	server/ref.c \
	server/repair.c \
	server/request.c \
	server/request_access.c \
	server/request_admin.c \
	server/request_root.c \
	server/retire.c \
	server/root.c \
	server/session.c \
	server/slab.c \
	server/slabd.c \
	server/stash.c \
	server/stats.c \
	server/store.c \
	server/sweep.c \
	server/task.c \
	server/topology.c \
	server/watch.c \
	server/strangers.c \
	server/words.c
CLIENT_SRC = \
	client/admin.c \
	client/block.c \
	client/bulk.c \
	client/cache.c \
	client/debug.c \
	client/foreign.c \
	client/free.c \
	client/inline.c \
	client/mapping.c \
	client/node.c \
	client/orphan.c \
	client/rack.c \
	client/owed.c \
	client/reach.c \
	client/reconnect.c \
	client/ref.c \
	client/root.c \
	client/session.c \
	client/sized.c \
	client/slabclient.c \
	client/thread.c
CTL_SRC = client/ctl/ask.c client/ctl/command.c client/ctl/drain.c client/ctl/leaks.c client/ctl/main.c client/ctl/show.c client/ctl/table.c client/reach.c

obj = $(patsubst %.c,$(B)/%.o,$(1))
# Empty: the fuzzer brings its own.
FUZZ_MAIN = $(B)/tests/fuzz/main.o
SHM_OBJ = $(call obj,$(SHM_SRC)) $(B)/layout_hash.o
PROTO_OBJ = $(call obj,$(PROTO_SRC))
SERVER_OBJ = $(call obj,$(SERVER_SRC)) $(B)/ledger_hash.o
CLIENT_OBJ = $(call obj,$(CLIENT_SRC))
CTL_OBJ = $(call obj,$(CTL_SRC))

LIB = $(B)/libslabclient.so.$(VERSION)

all: $(B)/slabd $(B)/slabd-keeper $(B)/slabctl $(B)/libslabclient.so $(B)/libslabclient.a $(B)/slabclient-inline.h

$(B)/slabd: $(B)/server/main.o $(SERVER_OBJ) $(PROTO_OBJ) $(SHM_OBJ)
	$(CC) $(LD_ALL) -o $@ $^ $(SERVER_LIBS)

# libc only.
$(B)/slabd-keeper: $(B)/server/keeper.o
	$(CC) $(LD_ALL) -o $@ $^

$(LIB): $(CLIENT_OBJ) $(PROTO_OBJ) $(SHM_OBJ) client/libslabclient.map
	$(CC) $(LD_ALL) -shared -Wl,-soname,libslabclient.so.$(SOVERSION) -Wl,--version-script=client/libslabclient.map -Wl,-z,defs -Wl,-z,nodelete \
		-o $@ $(filter %.o,$^) $(CLIENT_LIBS)

$(B)/libslabclient.so: $(LIB)
	ln -sf $(notdir $(LIB)) $(B)/libslabclient.so.$(SOVERSION)
	ln -sf libslabclient.so.$(SOVERSION) $@

$(B)/libslabclient.a: $(CLIENT_OBJ) $(PROTO_OBJ) $(SHM_OBJ)
	rm -f $@ && ar rcs $@ $^

$(B)/slabctl: $(CTL_OBJ) $(PROTO_OBJ) $(SHM_OBJ)
	$(CC) $(LD_ALL) -o $@ $^ $(CLIENT_LIBS)

$(B)/layout_hash_gen.c: tests/layout_hash.awk shm/layout.h shm/sheaf.h shm/word.h
	@mkdir -p $(@D)
	awk -f tests/layout_hash.awk shm/layout.h shm/sheaf.h shm/word.h >$@

# The generator runs here, so it is built without the variant's instruments but with its -D switches.
$(B)/layout_hash.c: $(B)/layout_hash_gen.c
	$(CC) -std=gnu11 -I. $(filter -D%,$(C_EXTRA)) -o $(B)/layout_hash_gen $< && $(B)/layout_hash_gen >$@

$(B)/layout_hash.o: $(B)/layout_hash.c
	$(CC) $(C_ALL) -c -o $@ $<

# The same of slabd's ledger.
$(B)/ledger_hash_gen.c: tests/layout_hash.awk server/ledger.h server/slab.h
	@mkdir -p $(@D)
	awk -v name=ledger_hash -f tests/layout_hash.awk server/ledger.h server/slab.h >$@

$(B)/ledger_hash.c: $(B)/ledger_hash_gen.c shm/layout.h server/root.h
	$(CC) -std=gnu11 -I. $(filter -D%,$(C_EXTRA)) -o $(B)/ledger_hash_gen $< && $(B)/ledger_hash_gen >$@

$(B)/ledger_hash.o: $(B)/ledger_hash.c
	$(CC) $(C_ALL) -c -o $@ $<

# The layout hash as a part of a name; and the public header that has the fast path in it.
$(B)/layout_name.h: $(B)/layout_hash.c
	sed -n 's/.* = 0x\([0-9a-f]*\)ull;/#define LAYOUT_NAME \1/p' $< >$@

$(B)/client/inline.o: $(B)/layout_name.h

$(B)/slabclient-inline.h: client/slabclient-inline.h.in client/inline.awk shm/atomic.h shm/layout.h shm/sheaf.h shm/word.h $(B)/layout_name.h
	awk -v hash=$$(sed 's/.* //' $(B)/layout_name.h) -f client/inline.awk $< >$@

# The client hides everything that its header does not declare.
$(CLIENT_OBJ) $(PROTO_OBJ): C_EXTRA += -fvisibility=hidden

$(B)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(C_ALL) -MMD -MP -c -o $@ $<

-include $(shell find build -name '*.d' -type f 2>/dev/null)

# Tests. One binary a kind; check.sh runs them and adds up what they say.

UNIT_SRC = tests/unit_main.c tests/skip.c tests/world.c $(filter-out tests/test_mutants.c,$(wildcard tests/test_*.c))
IT_SRC = tests/it_main.c tests/skip.c $(wildcard tests/harness*.c) $(filter-out tests/it_main.c,$(wildcard tests/it_*.c))
STORM_SRC = tests/storm.c $(wildcard tests/ghost*.c)
TEST_LIBS = -lcunit
ALL_OBJ = $(SERVER_OBJ) $(CLIENT_OBJ) $(PROTO_OBJ) $(SHM_OBJ)
SO_LINK = -L$(B) -lslabclient -Wl,-rpath,'$$ORIGIN/..'

$(B)/tests/unit: $(call obj,$(UNIT_SRC)) $(SERVER_OBJ) $(PROTO_OBJ) $(SHM_OBJ)
	$(CC) $(LD_ALL) -o $@ $^ $(SERVER_LIBS) $(TEST_LIBS)

$(B)/tests/it: $(call obj,$(IT_SRC)) $(PROTO_OBJ) $(SHM_OBJ) $(B)/libslabclient.so
	$(CC) $(LD_ALL) -o $@ $(filter %.o,$^) $(SO_LINK) $(CLIENT_LIBS) $(TEST_LIBS) -ldl

$(B)/tests/stress_kill $(B)/tests/soak: $(B)/tests/%: $(B)/tests/%.o $(call obj,$(STORM_SRC)) $(PROTO_OBJ) $(SHM_OBJ) $(B)/libslabclient.so
	$(CC) $(LD_ALL) -o $@ $(filter %.o,$^) $(SO_LINK) $(CLIENT_LIBS)

# Functions of libc that fail on order (tests/fail_at.h), what they are preloaded into, and who orders.
$(B)/tests/fail_at.so: $(B)/tests/fail_at.o
	$(CC) $(LD_ALL) -shared -o $@ $^ -ldl

$(B)/tests/fail_worker: $(B)/tests/fail_worker.o $(B)/libslabclient.so
	$(CC) $(LD_ALL) -o $@ $(filter %.o,$^) $(SO_LINK)

$(B)/tests/fail: $(call obj,tests/fail_main.c tests/fail_rig.c tests/skip.c $(wildcard tests/harness*.c)) $(PROTO_OBJ) $(SHM_OBJ) $(B)/libslabclient.so
	$(CC) $(LD_ALL) -o $@ $(filter %.o,$^) $(SO_LINK) $(CLIENT_LIBS) $(TEST_LIBS)

$(B)/tests/fuzz_client: $(call obj,tests/fuzz_client.c tests/skip.c $(wildcard tests/harness*.c)) $(PROTO_OBJ) $(SHM_OBJ) $(B)/libslabclient.so
	$(CC) $(LD_ALL) -o $@ $(filter %.o,$^) $(SO_LINK) $(CLIENT_LIBS) $(TEST_LIBS)

$(B)/tests/steady: $(B)/tests/steady.o $(B)/libslabclient.so
	$(CC) $(LD_ALL) -o $@ $(filter %.o,$^) $(SO_LINK)

$(B)/tests/instructions: $(B)/tests/instructions.o $(B)/libslabclient.so
	$(CC) $(LD_ALL) -o $@ $(filter %.o,$^) $(SO_LINK)

# Programs with the fast path inlined: from the same sources as the others.
$(B)/inlined/%.o: %.c $(B)/slabclient-inline.h
	@mkdir -p $(@D)
	$(CC) $(C_ALL) -fPIE -Iclient -include $(B)/slabclient-inline.h -MMD -MP -c -o $@ $<

$(B)/tests/it-inline: $(patsubst %.c,$(B)/inlined/%.o,$(IT_SRC)) $(PROTO_OBJ) $(SHM_OBJ) $(B)/libslabclient.so
	@mkdir -p $(@D)
	$(CC) $(LD_ALL) -o $@ $(filter %.o,$^) $(SO_LINK) $(CLIENT_LIBS) $(TEST_LIBS) -ldl

$(B)/tests/instructions-inline: $(B)/inlined/tests/instructions.o $(B)/libslabclient.so
	@mkdir -p $(@D)
	$(CC) $(LD_ALL) -o $@ $(filter %.o,$^) $(SO_LINK)

# Built with SLAB_STEPS (shm/step.h), everything in one program.
$(B)/tests/test_mutants: $(call obj,tests/test_mutants.c $(wildcard tests/steps_*.c)) $(B)/shm/step.o $(ALL_OBJ)
	$(CC) $(LD_ALL) -o $@ $^ $(SERVER_LIBS) $(TEST_LIBS)

# A slabd that is killed at a step.
$(B)/tests/die_at: $(call obj,tests/die_at.c) $(B)/shm/step.o $(SERVER_OBJ) $(PROTO_OBJ) $(SHM_OBJ)
	$(CC) $(LD_ALL) -o $@ $^ $(SERVER_LIBS)

# Loaded before libc.
$(B)/tests/jumps.so: $(B)/tests/jumps.o
	$(CC) $(LD_ALL) -shared -o $@ $^

# Clients that die at each step, and at each instruction; the first with everything in one program and built with SLAB_STEPS, as these.
KILL_SRC = tests/kill_rig.c tests/kill_acts.c tests/recount.c tests/skip.c $(wildcard tests/harness*.c)

$(B)/client_steps.def: $(CLIENT_SRC) shm/sheaf.h shm/barn.c
	@mkdir -p $(@D)
	sed -n 's/^.*[^A-Z_]STEP(\([A-Z_]*\)).*/X(\1)/p' $^ | sort -u >$@

$(B)/tests/kill_points.o: $(B)/client_steps.def

$(B)/tests/kill_points: $(call obj,tests/kill_points.c $(KILL_SRC)) $(B)/shm/step.o $(ALL_OBJ)
	$(CC) $(LD_ALL) -o $@ $^ $(SERVER_LIBS) $(TEST_LIBS)

$(B)/tests/kill_step: $(call obj,tests/kill_step.c $(KILL_SRC)) $(SERVER_OBJ) $(PROTO_OBJ) $(SHM_OBJ) $(B)/libslabclient.so
	$(CC) $(LD_ALL) -o $@ $(filter %.o,$^) $(SO_LINK) $(SERVER_LIBS) $(TEST_LIBS)

$(B)/tests/attach: $(B)/tests/systemd/attach.o $(B)/libslabclient.so
	$(CC) $(LD_ALL) -o $@ $(filter %.o,$^) $(SO_LINK)

# Fuzz targets (tests/fuzz): with a main() that runs files through them, or by `make fuzz` with clang's libFuzzer.

$(B)/tests/fuzz_codec: $(call obj,tests/fuzz/fuzz_codec.c) $(FUZZ_MAIN) $(PROTO_OBJ)
	$(CC) $(LD_ALL) -o $@ $^ $(CLIENT_LIBS)

$(B)/tests/fuzz_session: $(call obj,tests/fuzz/fuzz_session.c) $(FUZZ_MAIN) $(SERVER_OBJ) $(PROTO_OBJ) $(SHM_OBJ)
	$(CC) $(LD_ALL) -o $@ $^ $(SERVER_LIBS)

# What the corpus begins with: packets of every op.
$(B)/tests/fuzz_seeds: $(call obj,tests/fuzz/seeds.c) $(PROTO_OBJ)
	$(CC) $(LD_ALL) -o $@ $^ $(CLIENT_LIBS)

FUZZ_PROGRAMS = $(B)/tests/fuzz_codec $(B)/tests/fuzz_session $(B)/tests/fuzz_seeds

# With AFL++: make fuzz FUZZ_CC=afl-clang-fast FUZZ_C= FUZZ_LD=-fsanitize=fuzzer FUZZ_VARIANT=afl
FUZZ_CC = clang
FUZZ_VARIANT = fuzz
FUZZ_SANITIZERS = address,undefined
FUZZ_C = -fsanitize=fuzzer-no-link,$(FUZZ_SANITIZERS) -fno-sanitize-recover=undefined -fno-omit-frame-pointer
FUZZ_LD = -fsanitize=fuzzer,$(FUZZ_SANITIZERS)

fuzz: $(B)/tests/fuzz_seeds
	@if command -v $(FUZZ_CC) >/dev/null; then \
		$(MAKE) VARIANT=$(FUZZ_VARIANT) CC=$(FUZZ_CC) CFLAGS="-O1 -g" C_EXTRA="$(FUZZ_C)" LD_EXTRA="$(FUZZ_LD)" FUZZ_MAIN= \
			build/$(FUZZ_VARIANT)/tests/fuzz_codec build/$(FUZZ_VARIANT)/tests/fuzz_session; \
	else echo "skipped: fuzz: $(FUZZ_CC) is not there"; fi

test-programs: all $(FUZZ_PROGRAMS) $(B)/tests/unit $(B)/tests/it $(B)/tests/stress_kill $(B)/tests/soak $(B)/tests/jumps.so $(B)/tests/fuzz_client \
	$(B)/tests/steady $(B)/tests/attach $(B)/tests/instructions $(B)/tests/instructions-inline $(B)/tests/fail $(B)/tests/fail_at.so $(B)/tests/fail_worker

check: test-programs $(B)/tests/it-inline $(B)/tests/kill_step
	$(MAKE) VARIANT=steps C_EXTRA=-DSLAB_STEPS build/steps/tests/test_mutants build/steps/tests/die_at build/steps/tests/kill_points
	BUILD=$(B) tests/check.sh

# Unit and integration tests under a sanitizer, with address also the unmutated stories, the fuzzers' corpus and hostile clients; its build lies beside the others.
ASAN = -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
TSAN = -fsanitize=thread
# (The plain program that loads the library by dlopen takes the release build's.)
check-asan: all
	$(MAKE) VARIANT=asan CFLAGS="-O1 -g" C_EXTRA="$(ASAN)" LD_EXTRA="$(ASAN)" test-programs
	$(MAKE) VARIANT=asan-steps CFLAGS="-O1 -g" C_EXTRA="$(ASAN) -DSLAB_STEPS" LD_EXTRA="$(ASAN)" build/asan-steps/tests/test_mutants
	BUILD=build/asan PARTS="unit it unmutated corpus hostile" tests/check.sh

check-tsan: all
	$(MAKE) VARIANT=tsan CFLAGS="-O1 -g" C_EXTRA="$(TSAN)" LD_EXTRA="$(TSAN)" test-programs
	BUILD=build/tsan PARTS="unit it" tests/check.sh

check-mutants:
	$(MAKE) VARIANT=steps C_EXTRA=-DSLAB_STEPS build/steps/tests/test_mutants
	tests/check-mutants.sh build/steps/tests/test_mutants

check-model:
	tests/model/check.sh

# Placement is checked in a guest of two NUMA nodes, if there is a kernel for it (tests/check-numa.sh says where from).
LONG_ENV = BUILD=$(B) SLABD=$(B)/slabd SLABCTL=$(B)/slabctl SLABD_KEEPER=$(B)/slabd-keeper

check-long: test-programs fuzz $(B)/tests/kill_step
	$(MAKE) VARIANT=steps C_EXTRA=-DSLAB_STEPS build/steps/tests/die_at build/steps/tests/kill_points
	tests/check-numa.sh $(B) || [ $$? = 77 ]
	$(LONG_ENV) $(B)/tests/fuzz_client --seconds=600
	tests/check-fuzz.sh $(B) 600
	$(LONG_ENV) SLAB_ALIVE_S=300 $(B)/tests/it alive
	$(B)/tests/stress_kill --kills=5000
	$(LONG_ENV) build/steps/tests/kill_points --all
	$(LONG_ENV) $(B)/tests/kill_step --all
	$(B)/tests/stress_kill --kills=5000 --threads=1 --recall
	$(B)/tests/stress_kill --kills=5000 --threads=2 --recall
	$(LONG_ENV) $(B)/tests/it adopt-long
	$(LONG_ENV) $(B)/tests/fail --all
	$(B)/tests/soak

# Speed (tests/bench).

BENCH_SRC = $(wildcard tests/bench/*.c)

# Each of them alone with the peers that it measures.
BENCH_FRAME = $(call obj,$(filter-out tests/bench/peer_%.c,$(BENCH_SRC)))
BENCH_LINK = -L$(B) -lslabclient -Wl,-rpath,'$$ORIGIN/../..' -lm

$(B)/tests/bench/bench: $(call obj,$(BENCH_SRC)) $(B)/libslabclient.so
	$(CC) $(LD_ALL) -o $@ $(filter %.o,$^) $(BENCH_LINK)

$(B)/tests/bench/bench-inline: $(BENCH_FRAME) $(B)/inlined/tests/bench/peer_slabd.o $(B)/libslabclient.so
	$(CC) $(LD_ALL) -o $@ $(filter %.o,$^) $(BENCH_LINK) -Wl,--wrap=slabc_alloc,--wrap=slabc_free

$(B)/tests/bench/peers/dpdk.o: C_EXTRA += $(shell pkg-config --cflags libdpdk 2>/dev/null)
$(B)/tests/bench/bench-dpdk: $(BENCH_FRAME) $(B)/tests/bench/peers/dpdk.o
	$(CC) $(LD_ALL) -o $@ $^ $(shell pkg-config --libs libdpdk) -lm

$(B)/tests/bench/peers/boost.o: tests/bench/peers/boost.cc
	@mkdir -p $(@D)
	$(CXX) -std=c++17 -Wall -Wextra -I. -pthread $(CFLAGS) -MMD -MP -c -o $@ $<
$(B)/tests/bench/bench-boost: $(BENCH_FRAME) $(B)/tests/bench/peers/boost.o
	$(CXX) $(LD_ALL) -o $@ $^ -lrt -lm

# The peers whose packages are there.
BENCH_PEERS = $(B)/tests/bench/bench-inline $(if $(shell pkg-config --exists libdpdk && echo yes),$(B)/tests/bench/bench-dpdk) \
	$(if $(wildcard /usr/include/boost/interprocess/managed_shared_memory.hpp),$(B)/tests/bench/bench-boost)

BENCH_ENV = SLABD=$(B)/slabd SLABCTL=$(B)/slabctl BENCH=$(B)/tests/bench/bench OUT=build/bench

bench: all $(B)/tests/bench/bench
	$(BENCH_ENV) tests/bench/run.sh

bench-peers: all $(B)/tests/bench/bench $(BENCH_PEERS)
	$(BENCH_ENV) tests/bench/peers.sh

bench-trade: all $(B)/tests/bench/bench
	$(BENCH_ENV) tests/bench/trade.sh

$(B)/tests/bench/control/control: $(B)/tests/bench/control/control.o $(PROTO_OBJ) $(B)/libslabclient.so
	$(CC) $(LD_ALL) -o $@ $< $(PROTO_OBJ) -L$(B) -lslabclient $(CLIENT_LIBS) -Wl,-rpath,'$$ORIGIN/../../..'

bench-control: all $(B)/tests/bench/control/control
	$(BENCH_ENV) CONTROL=$(B)/tests/bench/control/control tests/bench/control.sh

# The main job: the pipeline example, built against a copy installed in the build folder.
demo: all
	$(MAKE) -s install PREFIX=$(CURDIR)/build/demo DESTDIR= >/dev/null
	PKG_CONFIG_PATH=$(CURDIR)/build/demo/lib/pkgconfig LDFLAGS=-Wl,-rpath,$(CURDIR)/build/demo/lib $(MAKE) -s -C examples OUT=$(CURDIR)/build/demo/examples
	SLABD=build/demo/sbin/slabd SLABCTL=build/demo/bin/slabctl PIPELINE=build/demo/examples/pipeline examples/demo.sh

# Installation: one list, "file folder mode [name [keep]]", for both ways. What is to be kept is the administrator's once it is there: it is not written
# over, and goes only if it is as it came.  A page's further names, those in its NAME section, are links to it.

define INSTALL_LIST
$(B)/slabd $(SBINDIR) 755
$(B)/slabd-keeper $(SBINDIR) 755
$(B)/slabctl $(BINDIR) 755
$(LIB) $(LIBDIR) 755
$(B)/libslabclient.a $(LIBDIR) 644
client/slabclient.h $(INCLUDEDIR) 644
$(B)/slabclient-inline.h $(INCLUDEDIR) 644
$(B)/libslabclient.pc $(LIBDIR)/pkgconfig 644
$(B)/slabd.service $(SYSTEMDDIR) 644
systemd/slabd.socket $(SYSTEMDDIR) 644
systemd/slabd.sysusers $(SYSUSERSDIR) 644 slabd.conf
systemd/slabd.tmpfiles $(TMPFILESDIR) 644 slabd.conf
client/slabctl.1 $(MANDIR)/man1 644
client/libslabclient.3 $(MANDIR)/man3 644
client/slabc_alloc.3 $(MANDIR)/man3 644
client/slabc_cache_open.3 $(MANDIR)/man3 644
client/slabc_get_stats.3 $(MANDIR)/man3 644
client/slabc_malloc.3 $(MANDIR)/man3 644
client/slabc_next_orphan.3 $(MANDIR)/man3 644
client/slabc_open.3 $(MANDIR)/man3 644
client/slabc_prefill.3 $(MANDIR)/man3 644
client/slabc_publish.3 $(MANDIR)/man3 644
client/slabc_ref_of.3 $(MANDIR)/man3 644
server/slabd.conf.5 $(MANDIR)/man5 644
$(B)/slab-layout.7 $(MANDIR)/man7 644
$(B)/slab-protocol.7 $(MANDIR)/man7 644
server/slabd-keeper.8 $(MANDIR)/man8 644
server/slabd.8 $(MANDIR)/man8 644
systemd/slabd.conf $(SYSCONFDIR)/slabd 644 slabd.conf keep
endef
export INSTALL_LIST
INSTALL_LINKS = libslabclient.so.$(SOVERSION) libslabclient.so
OTHER_NAMES = sed -n '/^\.Sh NAME/,/^\.Nd/s/^\.Nm \([a-z_]*\).*/\1.3/p' "$$file" | grep -vx "$${file\#\#*/}"

# Made anew each time: they depend on PREFIX.
$(B)/libslabclient.pc: client/libslabclient.pc.in FORCE
	@mkdir -p $(@D)
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' -e 's|@INCLUDEDIR@|$(INCLUDEDIR)|' -e 's|@VERSION@|$(VERSION)|' $< >$@

$(B)/slabd.service: systemd/slabd.service.in FORCE
	@mkdir -p $(@D)
	sed -e 's|@SBINDIR@|$(SBINDIR)|g' -e 's|@SYSCONFDIR@|$(SYSCONFDIR)|g' $< >$@

# The two pages that say what others must agree on: from templates, and from the sources that say it.
$(B)/slab-protocol.7: proto/mdoc.awk proto/proto.h proto/ops.def proto/slab-protocol.7.in
	@mkdir -p $(@D)
	awk -f proto/mdoc.awk proto/proto.h proto/ops.def proto/slab-protocol.7.in >$@

LAYOUT_PAGE_SRC = shm/layout.h shm/word.h shm/sheaf.h shm/debug.h client/ref.c shm/slab-layout.7.in
$(B)/slab-layout.7: shm/mdoc.awk $(LAYOUT_PAGE_SRC)
	@mkdir -p $(@D)
	awk -f shm/mdoc.awk $(LAYOUT_PAGE_SRC) >$(B)/slab_layout_gen.c
	$(CC) -std=gnu11 -I. -o $(B)/slab_layout_gen $(B)/slab_layout_gen.c && $(B)/slab_layout_gen >$@

install: all $(B)/libslabclient.pc $(B)/slabd.service $(B)/slab-layout.7 $(B)/slab-protocol.7
	echo "$$INSTALL_LIST" | while read -r file dir mode name keep; do \
		to="$(DESTDIR)$$dir/$${name:-$$(basename "$$file")}"; \
		[ -n "$$keep" ] && [ -e "$$to" ] && continue; \
		install -D -m "$$mode" "$$file" "$$to" || exit 1; \
		case $$file in *.3) for l in $$($(OTHER_NAMES)); do ln -sf "$${file##*/}" "$(DESTDIR)$$dir/$$l" || exit 1; done; esac; done
	for l in $(INSTALL_LINKS); do ln -sf libslabclient.so.$(VERSION) "$(DESTDIR)$(LIBDIR)/$$l"; done

uninstall:
	echo "$$INSTALL_LIST" | while read -r file dir mode name keep; do \
		to="$(DESTDIR)$$dir/$${name:-$$(basename "$$file")}"; \
		[ -n "$$keep" ] && ! cmp -s "$$file" "$$to" && continue; \
		rm -f "$$to"; \
		case $$file in *.3) for l in $$($(OTHER_NAMES)); do rm -f "$(DESTDIR)$$dir/$$l"; done; esac; done
	for l in $(INSTALL_LINKS); do rm -f "$(DESTDIR)$(LIBDIR)/$$l"; done

format:
	clang-format -i shm/*.[ch] proto/*.[ch] server/*.[ch] client/*.[ch] client/ctl/*.[ch] tests/*.[ch] tests/bench/*.[ch] tests/bench/peers/*.c* examples/*.[ch]

help:
	@echo "make              slabd, slabctl and libslabclient in $(B)/"
	@echo "make demo         the main job: a word count by six processes that share objects, twice, once with a kill"
	@echo "make check        all tests (root: also hugepage pools, other users, kills)"
	@echo "make check-asan, check-tsan   unit and integration tests under sanitizers"
	@echo "make check-mutants, check-model   each rule broken on purpose, in C and in the models (spin)"
	@echo "make check-long   hours: the kill storm ten times as long, kills at every step and instruction, 200 kills of slabd, a shortage at every call, an hour"
	@echo "                  (SOAK_S=3600) of everything at once, fuzzers and hostile clients ten minutes each, and placement on two NUMA nodes (a guest in qemu)"
	@echo "make fuzz         fuzzers for packets and for what slabd reads of a session, in build/fuzz/tests/ (clang)"
	@echo "make bench        speed beside glibc and tcmalloc;  make bench-trade   speed against memory, table and plot;  make bench-control   what a message costs"
	@echo "make bench-peers  speed and memory beside DPDK, Boost.Interprocess, jemalloc, mimalloc, tcmalloc, as far as installed: tables and plots"
	@echo "make install, uninstall       PREFIX=$(PREFIX) DESTDIR=$(DESTDIR)"
	@echo "make format, clean, help"

clean:
	rm -rf build

FORCE:

.PHONY: all fuzz test-programs check check-asan check-tsan check-mutants check-model check-long bench bench-trade bench-control bench-peers demo install uninstall format help clean FORCE
.DELETE_ON_ERROR:
