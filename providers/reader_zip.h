/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directory of a zip file, for the formats that are made of one (torch,
 * npz). Stricter than unzip(1): a file that two programs could read in two
 * ways is refused. So: one disk, no encryption, stored or deflated members, no
 * name twice, no gap between the directory and its end records, nothing behind
 * them but the comment, no two members in the same bytes.
 *
 * (PKWARE's APPNOTE 6.3: 4.3.7 local header, 4.3.12 directory, 4.3.14-16 end
 * records, 4.5.3 zip64 field.)
 *
 * Threads: one at a time for each struct zip.
 */
#ifndef CKPT_PROVIDERS_READER_ZIP_H
#define CKPT_PROVIDERS_READER_ZIP_H

#include "providers/reader.h"

enum zip_method { ZIP_STORED = 0, ZIP_DEFLATED = 8 };

struct zip_member {
	const char *name; /* not terminated; without NULs */
	size_t name_len;
	enum zip_method method;
	uint64_t size;   /* bytes that it yields */
	uint64_t packed; /* bytes in the file; size, if stored */
};

struct zip;

/*
 * Read the directory. The source must outlive the zip.
 *
 *   -ENOMSG  not a zip, or one that is refused
 *   -E2BIG   the directory takes more than `memory` bytes
 *   -ENOMEM, and what source->read returned
 */
MUST_CHECK int zip_open(const struct reader_source *source, size_t memory,
			struct zip **out);

/* NULL is fine. */
void zip_free(struct zip *z);
void zip_freep(struct zip **z);

/* Members, in the order of the directory. */
size_t zip_count(const struct zip *z);
const struct zip_member *zip_at(const struct zip *z, size_t i);

/* The number of the member of that name (not terminated). */
bool zip_find(const struct zip *z, const char *name, size_t len, size_t *i);

/*
 * Where a member's bytes begin: behind its local header, which is read and
 * compared with the directory.
 *
 *   -ENOMSG  it says something else, or its bytes reach into what follows
 *   and what source->read returned
 */
MUST_CHECK int zip_place(struct zip *z, size_t i, uint64_t *off);

/*
 * The first `len` bytes that a member yields, or all of them if it has fewer;
 * inflated if need be, reading no more than that takes.
 *
 *   -ENOMSG  as zip_place(); or it does not inflate to that many
 *   -ENOMEM, and what source->read returned
 */
MUST_CHECK int zip_head(struct zip *z, size_t i, void *buf, size_t len,
			size_t *got);

/*
 * A whole member; *out is the caller's, free(). Not checked against its CRC-32,
 * which torch.save can be told to leave wrong.
 *
 *   -E2BIG   it has more than `memory` bytes
 *   others   as zip_head()
 */
MUST_CHECK int zip_read(struct zip *z, size_t i, size_t memory, uint8_t **out,
			size_t *out_len);

/* For CLEANUP of what zip_read() gave. */
static inline void bytes_freep(uint8_t **bytes)
{
	free(*bytes);
}

#endif
