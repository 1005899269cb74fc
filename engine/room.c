/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which tier a file's bytes begin in: DRAM if there is room, else NVMe (the
 * spill, DESIGN.md section 4.3); and whether NVMe has room for what was
 * accepted.
 */
#include <errno.h>

#include "engine/core.h"

#define CHARGE_FIRST (UINT64_C(64) << 10) /* of a file of unknown size */
#define NVME_MARGIN (UINT64_C(16) << 20)
#define ROOM_FRESH_NS INT64_C(20000000)

int nvme_has_room(struct engine *e, uint64_t want)
{
	int64_t now = now_mono_ns();
	struct tier_room room;
	uint64_t margin;

	/* What was room a moment ago is the database's, once it has given up
	 * its reserve. */
	if (now - e->room_checked_ns > ROOM_FRESH_NS ||
	    !meta_reserve_held(e->meta)) {
		int r = e->nvme->ops->room(e->nvme, &room);

		if (r < 0)
			return r;
		margin = room.total / 16;
		if (margin > NVME_MARGIN)
			margin = NVME_MARGIN;
		e->nvme_avail = room.avail > margin ? room.avail - margin : 0;
		/* What is left of the database's reserve is for what was
		 * accepted. */
		if (!meta_reserve_hold(e->meta))
			e->nvme_avail = 0;
		e->room_checked_ns = now;
	}
	return e->nvme_avail > want ? 0 : -ENOSPC;
}

static uint64_t dram_free(struct engine *e)
{
	struct reserve_state rs;

	reserve_state(e->reserve, &rs);
	rs.charged += rs.promised;
	return rs.limit > rs.charged ? rs.limit - rs.charged : 0;
}

/* Is DRAM amply free for a file of which only `want` bytes are known? */
static bool dram_is_ample(struct engine *e, uint64_t want)
{
	uint64_t ample = e->config.dram / 8, free_len = dram_free(e);

	if (want > ample)
		ample = want;
	if (free_len < ample && backings_tidy(e))
		free_len = dram_free(e);
	return free_len >= ample || dram_evict(e, ample - free_len) == 0;
}

int choose_backing(struct engine *e, uint64_t want, int flags,
		   struct backing **out, int *fd)
{
	uint64_t charge = want > CHARGE_FIRST ? want : CHARGE_FIRST;
	int r;

	if (dram_is_ample(e, want) && dram_take(e, charge) == 0) {
		r = backing_create(e, BACKING_DRAM, charge, flags, out, fd);
		if (r == 0)
			return 0;
		reserve_give(e->reserve, charge);
		if (r != -ENOSPC)
			return r;
	}
	e->n_spilled++;
	return backing_create(e, BACKING_NVME, 0, flags, out, fd);
}

/* For a file that will be `len` bytes long: promised to it in DRAM, or
 * spilled. */
static int choose_expected(struct engine *e, uint64_t len, int flags,
			   struct backing **out, int *fd)
{
	int r;

	if (len <= e->config.dram && dram_is_ample(e, len) &&
	    dram_promise(e, len) == 0) {
		r = backing_create(e, BACKING_DRAM, 0, flags, out, fd);
		if (r == 0) {
			(*out)->promised = len; /* nobody else has it yet */
			(*out)->expected = true;
			return 0;
		}
		reserve_forgo(e->reserve, len);
		if (r != -ENOSPC)
			return r;
	}
	e->n_spilled++;
	return backing_create(e, BACKING_NVME, 0, flags, out, fd);
}

int choose_for_new(struct engine *e, uint64_t expected, int flags,
		   struct backing **out, int *fd)
{
	return expected > CHARGE_FIRST
		       ? choose_expected(e, expected, flags, out, fd)
		       : choose_backing(e, 0, flags, out, fd);
}
