/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a file has data and where holes, asked of the filesystem once a
 * stretch. What a fallocate set aside and nobody wrote counts as a hole.
 */
#ifndef CKPT_ENGINE_EXTENT_H
#define CKPT_ENGINE_EXTENT_H

#include <stdbool.h>
#include <stdint.h>

#include "metadata/compiler.h"

/* The first stretch of data at or behind some offset. Zeroed: none known. */
struct extent {
	uint64_t data, end;
	bool all; /* the filesystem cannot tell: all is data */
};

enum extent_kind { EXTENT_DATA, EXTENT_HOLE, EXTENT_MIXED };

/*
 * What [off, off + len) of fd is. e is kept between calls with growing off.
 * Of a file that is being written: as of some moment after the last look.
 */
enum extent_kind extent_look(struct extent *e, int fd, uint64_t off,
			     uint64_t len);

/*
 * Make [off, off + len) of fd a hole.
 *   -EOPNOTSUPP  the filesystem has none: write zeros
 */
MUST_CHECK int extent_punch(int fd, uint64_t off, uint64_t len);

#endif
