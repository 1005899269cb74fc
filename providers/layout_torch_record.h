/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One record of a torch zip: its place, and what stands around its data. The
 * rules are those of PyTorch's own writer (layout_torch.c says why). Each
 * put function writes at `at` and returns where it ended; the caller has made
 * room. Threads: `parts` any, the rest one at a time. Internal.
 */
#ifndef CKPT_PROVIDERS_LAYOUT_TORCH_RECORD_H
#define CKPT_PROVIDERS_LAYOUT_TORCH_RECORD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RECORD_ALIGNMENT 64
#define ZIP_FAR UINT32_MAX /* from here on lengths and places are zip64 */
#define ZIP_ENDS_LEN (56 + 20 + 22) /* zip64 record, its locator, the zip one */

struct record {
	char *name; /* with the root; ours */
	size_t name_len;
	_Atomic uint64_t size; /* data.pkl: CKPT_SIZE_UNKNOWN until pickled */
	bool is_big;           /* has zip64 lengths: decided when placed */
	uint64_t header_off;
	uint64_t data_off;
	_Atomic uint32_t parts;  /* zip_crc32_part() of what was filled */
	const char *text;        /* of a small record; else NULL */
	struct ckpt_provider *p; /* until finish() hands it on */
};

/* Places the record from off on; its size and name are set. */
void record_place(struct record *r, uint64_t off);
/* Where the next one may begin. */
uint64_t record_end(const struct record *r);

/* The local header, padded so that the data behind it is aligned. */
uint8_t *record_put_header(uint8_t *at, const struct record *r);
/* Sum and lengths behind the data; nothing if it is empty. */
size_t record_descriptor_len(const struct record *r);
uint8_t *record_put_descriptor(uint8_t *at, struct record *r);
/* The entry in the directory. */
size_t record_entry_len(const struct record *r);
uint8_t *record_put_entry(uint8_t *at, struct record *r);
/* The ends of a directory of n entries, len bytes from off on; as PyTorch
 * does, always with the zip64 record. ZIP_ENDS_LEN. */
uint8_t *zip_put_ends(uint8_t *at, uint64_t n, uint64_t off, uint64_t len);

#endif
