/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which kind of ring, and the arithmetic of a write that comes back short.
 * After a short write the rest starts at the last whole 4096 bytes: O_DIRECT
 * wants it, and writing some bytes twice does no harm.
 */
#include "engine/ring.h"

#include <errno.h>
#include <stdio.h>

#define BLOCK_LEN 4096
#define STUCK_MOST 64

void ring_step_init(struct ring_step *s, struct tier_io *io)
{
	*s = (struct ring_step){ .io = io };
}

size_t ring_step_len(const struct ring_step *s)
{
	size_t left = s->io->len - s->done;
	bool first = !s->done && !s->stuck;

	if (first && s->io->first_len && s->io->first_len < left)
		return s->io->first_len;
	return left;
}

/*
 * io_uring cancels what its worker has not begun when the thread that
 * submitted it exits.
 */
static bool is_passing(ssize_t res)
{
	return res == -EINTR || res == -EAGAIN || res == -ECANCELED;
}

bool ring_step_over(struct ring_step *s, ssize_t res)
{
	size_t before = s->done;

	if (res < 0 && !is_passing(res)) {
		s->io->res = (int)res;
		return true;
	}
	if (res > 0)
		s->done += (size_t)res;
	if (s->done >= s->io->len) {
		s->io->res = 0;
		return true;
	}
	s->done -= s->done % BLOCK_LEN;
	s->stuck = s->done > before ? 0 : s->stuck + 1;
	if (s->stuck < STUCK_MOST)
		return false;
	s->io->res = -EIO;
	return true;
}

int ring_open(unsigned depth, struct ring **out, char *io, size_t io_len)
{
	char why[96] = "";
	int rc = ring_uring_ops.open(depth, out, why, sizeof(why));

	if (!rc) {
		snprintf(io, io_len, "%s", ring_uring_ops.name);
		return 0;
	}
	snprintf(io, io_len, "%s (%s)", ring_threads_ops.name, why);
	return ring_threads_ops.open(depth, out, why, sizeof(why));
}
