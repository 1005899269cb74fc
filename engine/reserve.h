/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The DRAM tier's directory and its memory (DESIGN.md section 4.1): mounting
 * the tmpfs pair, the ballast that holds what no version uses, and finding
 * what a dead daemon left.
 *
 * Budget: limit = ballast + charged + slack (charged, or what lies there, if
 * that is more); what is promised lies in the ballast, where there is one. The
 * charge of a backing file is what it holds or is promised. Whoever wants bytes calls reserve_take()
 * before it allocates, reserve_give() after it freed. Slack is kept free
 * (up to limit/16, at most 64 MiB) so that small files never wait for a
 * punch; a background thread puts the ballast back to limit - charged -
 * slack. Without a reserve (no dram= given) the ballast is empty and only
 * the numbers are kept.
 */
#ifndef CKPT_ENGINE_RESERVE_H
#define CKPT_ENGINE_RESERVE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "metadata/compiler.h"

/* ---- where the DRAM tier lies ---- */

struct dram_place {
	char dir[256];      /* …/dram: backing files */
	char meta_dir[256]; /* …/meta: accepted database */
	char base[256];     /* parent of both */
	int owner_fd;       /* while it is open the place is in use; or -1 */
	bool found;         /* with what an earlier daemon left in it */
	bool own_tmpfs;     /* we mounted it (else a directory in /dev/shm) */
	char why[160];      /* why not, if not */
};

/*
 * Makes or finds the two tmpfs of the mount `name` (hex of its UUID): with
 * CAP_SYS_ADMIN mounts under /run/ckptfs/NAME (0700), size = limit plus
 * headroom, huge=within_size,noswap where the kernel takes them; else
 * directories under /dev/shm/ckptfs-UID-NAME. Found ones are kept as they
 * are but resized. nvme_dir is noted beside them, for dram_place_leftovers().
 * It is in use until it is closed or removed, or the process ends.
 * out is written on failure too: why says what was in the way.
 *
 *   -ENOSPC  /dev/shm is too small: why says how small
 *   -EBUSY   another daemon uses it
 */
MUST_CHECK int dram_place_open(const char *name, const char *nvme_dir,
			       uint64_t limit, uint64_t meta_limit,
			       struct dram_place *out);
/* It stays for the next daemon. All zero is fine. */
void dram_place_close(struct dram_place *p);
/* Says what may empty it behind our back; for a mount that came up. */
void dram_place_warn(const struct dram_place *p);
/* Unmounts and removes it all: nothing in it is needed any more. */
void dram_place_remove(struct dram_place *p);

/*
 * Each place whose owner is gone: base as in struct dram_place, nvme= of the
 * owner ("": not known), bytes of memory it holds. Those of this user, for
 * root also those under /run/ckptfs. fn non-zero stops, and is returned.
 */
typedef int leftover_fn(void *arg, const char *base, const char *nvme,
			uint64_t bytes);
MUST_CHECK int dram_place_leftovers(leftover_fn *fn, void *arg);
/*
 * Frees one of them, with all that is in it.
 *   -EINVAL  not such a place; -EPERM: not ours; -EBUSY: its owner lives
 */
MUST_CHECK int dram_place_free(const char *base);

/* ---- the budget and the ballast ---- */

struct reserve;
MUST_CHECK int reserve_start(const char *dir, uint64_t limit, bool ballast,
			     struct reserve **out);
void reserve_stop(struct reserve *r); /* removes the ballast; NULL allowed */
/* Charges len bytes; shrinks the ballast if slack does not hold them.
 *   -ENOSPC  limit reached; nothing was charged (evict, then try again) */
MUST_CHECK int reserve_take(struct reserve *r, uint64_t len);
void reserve_give(struct reserve *r, uint64_t len);
/* At start-up: what is there already, even above the limit. */
void reserve_charge(struct reserve *r, uint64_t len);

/*
 * A promise of len bytes to a file that will grow: nobody else can have them,
 * but the ballast holds their memory until they are taken (free memory is not
 * backed for long on a virtual machine).
 *   -ENOSPC  as reserve_take()
 */
MUST_CHECK int reserve_promise(struct reserve *r, uint64_t len);
/* Charges len bytes that were promised. */
void reserve_take_promised(struct reserve *r, uint64_t len);
/* They will not be wanted. */
void reserve_forgo(struct reserve *r, uint64_t len);

/*
 * Looks at what lies on the tmpfs beside the ballast. Where that is more than
 * was charged (a passthrough write asks nobody) it counts as taken until the
 * next look, and the ballast makes room for it at once, so that what is free
 * stays as large as the headroom. Returns the bytes that are taken beyond the
 * limit: evict as much. One thread, often while files are being written.
 * Where others use the filesystem too (/dev/shm) there is nothing to see: 0.
 */
uint64_t reserve_look(struct reserve *r);

struct reserve_state {
	uint64_t limit, charged, promised, ballast;
	uint64_t target; /* what the ballast may grow to */
	char note[160];  /* why it stops short of the limit, or "" */
};
void reserve_state(struct reserve *r, struct reserve_state *out);
/* Waits until the ballast has reached its target (tests, bench). */
MUST_CHECK int reserve_wait_filled(struct reserve *r, int timeout_ms);

#endif
