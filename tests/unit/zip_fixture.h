/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files made in memory for the readers' tests: an image that grows, with a
 * hole in it if need be, and a writer of zip files that can be told to lie.
 */
#ifndef CKPT_TESTS_UNIT_ZIP_FIXTURE_H
#define CKPT_TESTS_UNIT_ZIP_FIXTURE_H

#include <zlib.h>

#include "providers/reader_bytes.h"
#include "providers/reader_zip.h"

#include "check.h"

#define IMAGE_ROOM (4 << 20)

struct image {
	uint8_t *at;
	size_t len;
	uint64_t hole_at;  /* what lies behind it is that much further on */
	uint64_t hole_len; /* zeros */
};

/* A read out of bounds is the reader's mistake. */
__attribute__((unused)) static int image_read(void *arg, void *buf, size_t len,
					      uint64_t off)
{
	const struct image *img = arg;
	uint64_t size = img->len + img->hole_len;

	CHECK(off <= size && len <= size - off);
	for (size_t i = 0; i < len; i++, off++) {
		uint8_t byte = 0;

		if (off < img->hole_at || !img->hole_len)
			byte = img->at[off];
		else if (off - img->hole_at >= img->hole_len)
			byte = img->at[off - img->hole_len];
		((uint8_t *)buf)[i] = byte;
	}
	return 0;
}

__attribute__((unused)) static struct reader_source image_source(
	struct image *img)
{
	return (struct reader_source){ .size = img->len + img->hole_len,
				       .read = image_read,
				       .arg = img };
}

__attribute__((unused)) static void image_new(struct image *img)
{
	memset(img, 0, sizeof(*img));
	img->at = malloc(IMAGE_ROOM);
	CHECK(img->at);
}

__attribute__((unused)) static void image_put(struct image *img,
					      const void *bytes, size_t len)
{
	CHECK(len <= IMAGE_ROOM - img->len);
	memcpy(img->at + img->len, bytes, len);
	img->len += len;
}

__attribute__((unused)) static void image_number(struct image *img, uint64_t v,
						 size_t n)
{
	uint8_t bytes[8];

	put_le(bytes, v, n);
	image_put(img, bytes, n);
}

/* Where the next byte will lie. */
__attribute__((unused)) static uint64_t image_end(const struct image *img)
{
	return img->len + img->hole_len;
}

/* ---- zip ---- */

struct zip_entry {
	char name[64];
	uint64_t header;
	uint64_t size;
	uint64_t packed;
	unsigned method;
	unsigned flags;
};

struct zip_writer {
	struct image *img;
	struct zip_entry e[64];
	int n;
	bool zip64;
	unsigned local_extra; /* bytes of padding in local headers */
	uint64_t directory;
	uint64_t end;
};

/* A local header, as torch writes it: sizes follow in the directory. */
__attribute__((unused)) static struct zip_entry *zip_begin(struct zip_writer *w,
							   const char *name,
							   unsigned method)
{
	struct zip_entry *e = &w->e[w->n++];

	snprintf(e->name, sizeof(e->name), "%s", name);
	e->header = image_end(w->img);
	e->method = method;
	image_number(w->img, 0x04034b50, 4);
	image_number(w->img, 0, 2);
	image_number(w->img, e->flags, 2);
	image_number(w->img, method, 2);
	image_number(w->img, 0, 8);
	image_number(w->img, 0, 8);
	image_number(w->img, strlen(name), 2);
	image_number(w->img, w->local_extra, 2);
	image_put(w->img, name, strlen(name));
	for (unsigned i = 0; i < w->local_extra; i++)
		image_put(w->img, "Z", 1);
	return e;
}

__attribute__((unused)) static void zip_add(struct zip_writer *w,
					    const char *name, const void *bytes,
					    size_t len)
{
	struct zip_entry *e = zip_begin(w, name, ZIP_STORED);

	e->size = e->packed = len;
	image_put(w->img, bytes, len);
}

__attribute__((unused)) static void zip_add_deflated(struct zip_writer *w,
						     const char *name,
						     const void *bytes,
						     size_t len)
{
	struct zip_entry *e = zip_begin(w, name, ZIP_DEFLATED);
	z_stream s = { .next_in = (Bytef *)(uintptr_t)bytes,
		       .avail_in = (uInt)len,
		       .next_out = w->img->at + w->img->len,
		       .avail_out = (uInt)(IMAGE_ROOM - w->img->len) };

	CHECK_EQ(deflateInit2(&s, 9, Z_DEFLATED, -MAX_WBITS, 9, 0), Z_OK);
	CHECK_EQ(deflate(&s, Z_FINISH), Z_STREAM_END);
	e->size = len;
	e->packed = s.total_out;
	w->img->len += s.total_out;
	deflateEnd(&s);
}

__attribute__((unused)) static void zip_put_entry(struct zip_writer *w,
						  const struct zip_entry *e)
{
	bool big = w->zip64;

	image_number(w->img, 0x02014b50, 4);
	image_number(w->img, 0, 4);
	image_number(w->img, e->flags, 2);
	image_number(w->img, e->method, 2);
	image_number(w->img, 0, 8);
	image_number(w->img, big ? UINT32_MAX : e->packed, 4);
	image_number(w->img, big ? UINT32_MAX : e->size, 4);
	image_number(w->img, strlen(e->name), 2);
	image_number(w->img, big ? 28 : 0, 2);
	image_number(w->img, 0, 2);
	image_number(w->img, 0, 8);
	image_number(w->img, big ? UINT32_MAX : e->header, 4);
	image_put(w->img, e->name, strlen(e->name));
	if (big) {
		image_number(w->img, 1, 2);
		image_number(w->img, 24, 2);
		image_number(w->img, e->size, 8);
		image_number(w->img, e->packed, 8);
		image_number(w->img, e->header, 8);
	}
}

__attribute__((unused)) static void zip_finish(struct zip_writer *w)
{
	uint64_t off = w->directory = image_end(w->img), len;

	for (int i = 0; i < w->n; i++)
		zip_put_entry(w, &w->e[i]);
	len = image_end(w->img) - off;
	w->end = image_end(w->img);
	if (w->zip64) {
		image_number(w->img, 0x06064b50, 4);
		image_number(w->img, 44, 8);
		image_number(w->img, 0, 4);
		image_number(w->img, 0, 8);
		image_number(w->img, (uint64_t)w->n, 8);
		image_number(w->img, (uint64_t)w->n, 8);
		image_number(w->img, len, 8);
		image_number(w->img, off, 8);
		image_number(w->img, 0x07064b50, 4);
		image_number(w->img, 0, 4);
		image_number(w->img, w->end, 8);
		image_number(w->img, 1, 4);
	}
	image_number(w->img, 0x06054b50, 4);
	image_number(w->img, 0, 4);
	image_number(w->img, (uint64_t)w->n, 2);
	image_number(w->img, (uint64_t)w->n, 2);
	image_number(w->img, len, 4);
	image_number(w->img, w->zip64 ? UINT32_MAX : off, 4);
	image_number(w->img, 0, 2);
}

#endif
