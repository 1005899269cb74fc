/* SPDX-License-Identifier: Apache-2.0 */
/* Zip records as bytes: APPNOTE 6.3.9, sections 4.3 and 4.5.3. */
#include "providers/layout_torch_record.h"

#include <string.h>

#include "providers/ckpt.h"
#include "providers/crc32.h"

#define HEADER_LEN 30
#define ENTRY_LEN 46
#define FLAG_DESCRIPTOR 0x0008
#define FLAG_UTF8 0x0800
#define DATE 0x0021 /* 1980-01-01 */

static uint8_t *put(uint8_t *at, uint64_t value, size_t len)
{
	for (; len; len--, value >>= 8)
		*at++ = (uint8_t)value;
	return at;
}

static uint8_t *put_bytes(uint8_t *at, const void *bytes, size_t len)
{
	if (len)
		memcpy(at, bytes, len);
	return at + len;
}

static uint64_t min_zip64(uint64_t value)
{
	return value < ZIP_FAR ? value : ZIP_FAR;
}

static bool is_far(const struct record *r)
{
	return r->header_off >= ZIP_FAR;
}

/* The zip64 field in header and entry; 0: it has none. */
static size_t zip64_len(const struct record *r)
{
	if (!r->is_big && !is_far(r))
		return 0;
	return 4 + (r->is_big ? 16 : 0) + (is_far(r) ? 8 : 0);
}

static uint8_t *put_zip64(uint8_t *at, const struct record *r)
{
	size_t len = zip64_len(r);

	if (!len)
		return at;
	at = put(at, 0x0001, 2);
	at = put(at, len - 4, 2);
	if (r->is_big) {
		at = put(at, r->size, 8);
		at = put(at, r->size, 8);
	}
	if (is_far(r))
		at = put(at, r->header_off, 8);
	return at;
}

static unsigned record_flags(const struct record *r)
{
	return FLAG_UTF8 | (r->size ? FLAG_DESCRIPTOR : 0);
}

uint8_t *record_put_header(uint8_t *at, const struct record *r)
{
	size_t extra_len = (size_t)(r->data_off - r->header_off) - HEADER_LEN -
			   r->name_len;
	size_t pad_len = extra_len - zip64_len(r) - 4;

	at = put(at, 0x04034b50, 4);
	at = put(at, 0, 2);
	at = put(at, record_flags(r), 2);
	at = put(at, 0, 2 + 2); /* stored; time */
	at = put(at, DATE, 2);
	at = put(at, 0, 4 + 4 + 4); /* sum and lengths: see descriptor */
	at = put(at, r->name_len, 2);
	at = put(at, extra_len, 2);
	at = put_bytes(at, r->name, r->name_len);
	at = put_zip64(at, r);
	at = put_bytes(at, "FB", 2);
	at = put(at, pad_len, 2);
	memset(at, 'Z', pad_len);
	return at + pad_len;
}

size_t record_descriptor_len(const struct record *r)
{
	if (!r->size)
		return 0;
	return r->is_big || is_far(r) ? 24 : 16;
}

static uint32_t record_crc(struct record *r)
{
	return zip_crc32_whole(atomic_load(&r->parts), r->size);
}

uint8_t *record_put_descriptor(uint8_t *at, struct record *r)
{
	size_t len = record_descriptor_len(r);

	if (!len)
		return at;
	at = put(at, 0x08074b50, 4);
	at = put(at, record_crc(r), 4);
	at = put(at, r->size, (len - 8) / 2);
	return put(at, r->size, (len - 8) / 2);
}

size_t record_entry_len(const struct record *r)
{
	return ENTRY_LEN + r->name_len + zip64_len(r);
}

uint8_t *record_put_entry(uint8_t *at, struct record *r)
{
	at = put(at, 0x02014b50, 4);
	at = put(at, 0, 2);
	at = put(at, zip64_len(r) ? 45 : 20, 2);
	at = put(at, record_flags(r), 2);
	at = put(at, 0, 2 + 2);
	at = put(at, DATE, 2);
	at = put(at, record_crc(r), 4);
	at = put(at, min_zip64(r->size), 4);
	at = put(at, min_zip64(r->size), 4);
	at = put(at, r->name_len, 2);
	at = put(at, zip64_len(r), 2);
	at = put(at, 0, 2 + 2 + 2 + 4); /* comment, disk, attributes */
	at = put(at, min_zip64(r->header_off), 4);
	at = put_bytes(at, r->name, r->name_len);
	return put_zip64(at, r);
}

uint8_t *zip_put_ends(uint8_t *at, uint64_t n, uint64_t off, uint64_t len)
{
	at = put(at, 0x06064b50, 4);
	at = put(at, 56 - 12, 8);
	at = put(at, 45, 2);
	at = put(at, 45, 2);
	at = put(at, 0, 4 + 4);
	at = put(at, n, 8);
	at = put(at, n, 8);
	at = put(at, len, 8);
	at = put(at, off, 8);

	at = put(at, 0x07064b50, 4);
	at = put(at, 0, 4);
	at = put(at, off + len, 8);
	at = put(at, 1, 4);

	at = put(at, 0x06054b50, 4);
	at = put(at, 0, 2 + 2);
	at = put(at, n < UINT16_MAX ? n : UINT16_MAX, 2);
	at = put(at, n < UINT16_MAX ? n : UINT16_MAX, 2);
	at = put(at, min_zip64(len), 4);
	at = put(at, min_zip64(off), 4);
	return put(at, 0, 2);
}

uint64_t record_end(const struct record *r)
{
	return r->data_off + r->size + record_descriptor_len(r);
}

/* Padding is a field of its own, 4 + n long. */
void record_place(struct record *r, uint64_t off)
{
	uint64_t start;

	r->header_off = off;
	r->is_big = r->size != CKPT_SIZE_UNKNOWN && r->size >= ZIP_FAR;
	start = off + HEADER_LEN + r->name_len + zip64_len(r);
	r->data_off = (start + 4 + RECORD_ALIGNMENT - 1) / RECORD_ALIGNMENT *
		      RECORD_ALIGNMENT;
}
