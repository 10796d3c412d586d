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
C_ALL = -std=gnu11 -D_GNU_SOURCE $(WARN) -I. -fPIC -pthread $(CFLAGS) $(C_EXTRA)
LD_ALL = -pthread $(LDFLAGS) $(LD_EXTRA)

PC_SERVER := libevent msgpack libsystemd
SERVER_LIBS = $(shell pkg-config --libs $(PC_SERVER)) -lnuma -linih
CLIENT_LIBS = $(shell pkg-config --libs msgpack)

SHM_SRC = shm/barn.c shm/segment.c
PROTO_SRC = proto/codec.c proto/channel.c
SERVER_SRC = server/arena.c server/audit.c server/bitset.c server/cache.c server/config.c server/conn.c server/geometry.c server/grant.c \
	server/listener.c server/log.c server/node.c server/pages.c server/reaper.c server/request.c server/session.c server/slab.c \
	server/slabd.c server/stats.c server/topology.c server/words.c
CLIENT_SRC = client/block.c client/bulk.c client/cache.c client/free.c client/mapping.c client/ref.c client/session.c client/slabclient.c client/thread.c
CTL_SRC = client/ctl/main.c client/ctl/table.c

obj = $(patsubst %.c,$(B)/%.o,$(1))
SHM_OBJ = $(call obj,$(SHM_SRC)) $(B)/layout_hash.o
PROTO_OBJ = $(call obj,$(PROTO_SRC))
SERVER_OBJ = $(call obj,$(SERVER_SRC))
CLIENT_OBJ = $(call obj,$(CLIENT_SRC))
CTL_OBJ = $(call obj,$(CTL_SRC))

LIB = $(B)/libslabclient.so.$(VERSION)

all: $(B)/slabd $(B)/slabctl $(B)/libslabclient.so $(B)/libslabclient.a

$(B)/slabd: $(B)/server/main.o $(SERVER_OBJ) $(PROTO_OBJ) $(SHM_OBJ)
	$(CC) $(LD_ALL) -o $@ $^ $(SERVER_LIBS)

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

# The client hides everything that its header does not declare.
$(CLIENT_OBJ) $(PROTO_OBJ): C_EXTRA += -fvisibility=hidden

$(B)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(C_ALL) -MMD -MP -c -o $@ $<

-include $(shell find build -name '*.d' 2>/dev/null)

clean:
	rm -rf build

.PHONY: all clean
.DELETE_ON_ERROR:
