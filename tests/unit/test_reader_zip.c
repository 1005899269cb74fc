/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The zip reader: what it reads, and that every lie is refused. Each hostile
 * file is a good one with a few bytes changed.
 */
#include "zip_fixture.h"

static const char text[] = "some text that is the same text as the other text";

/* Two stored members, one deflated. */
static void make(struct image *img, struct zip_writer *w, bool zip64)
{
	image_new(img);
	memset(w, 0, sizeof(*w));
	w->img = img;
	w->zip64 = zip64;
	w->local_extra = 13;
	zip_add(w, "r/a", "first", 5);
	zip_add_deflated(w, "r/z", text, sizeof(text));
	zip_add(w, "r/bb", "", 0);
	zip_finish(w);
}

static int try_open(struct image *img)
{
	struct reader_source s = image_source(img);
	struct zip *z = NULL;
	int err = zip_open(&s, 1 << 20, &z);

	zip_free(z);
	return err;
}

/* Open and read everything; the first error. */
static int try_all(struct image *img)
{
	struct reader_source s = image_source(img);
	struct zip *z = NULL;
	int err = zip_open(&s, 1 << 20, &z), first = err;

	for (size_t i = 0; !err && i < zip_count(z); i++) {
		uint8_t *bytes = NULL;
		size_t len;
		uint64_t off;
		int rc = zip_read(z, i, 1 << 20, &bytes, &len);

		if (!first)
			first = rc;
		rc = zip_place(z, i, &off);
		if (!first)
			first = rc;
		free(bytes);
	}
	zip_free(z);
	return first;
}

static void reads(bool zip64)
{
	CLEANUP(zip_freep) struct zip *z = NULL;
	CLEANUP(bytes_freep) uint8_t *bytes = NULL;
	struct reader_source s;
	struct zip_writer w;
	struct image img;
	char head[8];
	uint64_t off;
	size_t i, len;

	make(&img, &w, zip64);
	s = image_source(&img);
	CHECK_EQ(zip_open(&s, 1 << 20, &z), 0);
	CHECK_EQ(zip_count(z), 3);
	CHECK(zip_find(z, "r/bb", 4, &i));
	CHECK_EQ(i, 2);
	CHECK(!zip_find(z, "r/b", 3, &i));
	CHECK(!zip_find(z, "r/zz", 4, &i));
	CHECK(zip_find(z, "r/a", 3, &i));
	CHECK_EQ(zip_place(z, i, &off), 0);
	CHECK(!memcmp(img.at + off, "first", 5));
	CHECK_EQ(zip_head(z, i, head, 8, &len), 0);
	CHECK_EQ(len, 5);
	CHECK(zip_find(z, "r/z", 3, &i));
	CHECK_EQ(zip_head(z, i, head, 8, &len), 0);
	CHECK(len == 8 && !memcmp(head, text, 8));
	CHECK_EQ(zip_read(z, i, 1 << 20, &bytes, &len), 0);
	CHECK(len == sizeof(text) && !memcmp(bytes, text, len));
	CHECK_EQ(zip_read(z, i, sizeof(text) - 1, &bytes, &len), -E2BIG);
	free(img.at);
}

static void truncated(bool zip64)
{
	struct zip_writer w;
	struct image img;
	size_t len;

	make(&img, &w, zip64);
	len = img.len;
	for (img.len = 0; img.len < len; img.len++)
		CHECK_EQ(try_open(&img), -ENOMSG);
	CHECK_EQ(try_open(&img), 0);
	/* Something behind it, and something before it. */
	image_put(&img, "x", 1);
	CHECK_EQ(try_open(&img), -ENOMSG);
	memmove(img.at + 1, img.at, len);
	CHECK_EQ(try_open(&img), -ENOMSG);
	free(img.at);
}

/* Whatever one byte becomes: an answer, and no fault (of a sanitizer). */
static void any_byte(bool zip64)
{
	struct zip_writer w;
	struct image img;

	make(&img, &w, zip64);
	CHECK_EQ(try_all(&img), 0);
	for (size_t i = 0; i < img.len; i++) {
		uint8_t was = img.at[i];

		for (int v = 0; v < 256; v++) {
			int err;

			img.at[i] = (uint8_t)v;
			err = try_all(&img);
			CHECK(!err || err == -ENOMSG || err == -E2BIG);
		}
		img.at[i] = was;
	}
	free(img.at);
}

/* Number `value` of n bytes at `at` must be refused, then as it was. */
static void refused(struct image *img, uint64_t at, uint64_t value, size_t n)
{
	uint8_t was[8];

	memcpy(was, img->at + at, n);
	put_le(img->at + at, value, n);
	CHECK_EQ(try_all(img), -ENOMSG);
	memcpy(img->at + at, was, n);
}

static void lies(void)
{
	struct zip_writer w;
	struct image img;
	uint64_t d;

	make(&img, &w, false);
	d = w.directory;
	refused(&img, d + 8, 1, 2); /* encrypted */
	refused(&img, d + 8, 0x40, 2);
	refused(&img, w.e[0].header + 6, 1, 2);
	refused(&img, d + 10, 9, 2); /* deflate64 */
	refused(&img, d + 10, 8, 2); /* the local header says stored */
	refused(&img, d + 20, 6, 4); /* packed is not size */
	refused(&img, d + 20, UINT32_MAX, 4);
	refused(&img, d + 34, 1, 2);             /* another disk */
	refused(&img, d + 42, w.e[1].header, 4); /* in another member */
	refused(&img, d + 42, 1, 4);
	refused(&img, d + 42, d, 4); /* in the directory */
	refused(&img, d + 42, UINT32_MAX, 4);
	refused(&img, d + 28, 0, 2); /* no name */
	refused(&img, d + 28, 65535, 2);
	refused(&img, d + 46, 0, 1);   /* a NUL in the name */
	refused(&img, d + 46, 'q', 1); /* the local header has another */
	refused(&img, w.e[0].header + 28, 14, 2); /* its bytes move on */
	refused(&img, w.e[0].header, 0, 4);
	refused(&img, w.end + 4, 1, 2); /* disks */
	refused(&img, w.end + 6, 1, 2);
	refused(&img, w.end + 8, 2, 2); /* entries */
	refused(&img, w.end + 10, 2, 2);
	refused(&img, w.end + 8, 0x00020002, 4);
	refused(&img, w.end + 8, 0x00040004, 4);
	refused(&img, w.end + 12, 1, 4);
	refused(&img, w.end + 16, d - 1, 4);
	refused(&img, w.end + 16, UINT32_MAX, 4);
	refused(&img, w.end + 20, 1, 2);
	CHECK_EQ(try_all(&img), 0);
	free(img.at);
}

static void zip64_lies(void)
{
	struct zip_writer w;
	struct image img;
	uint64_t d, e;

	make(&img, &w, true);
	d = w.directory;
	e = w.end;
	/* The first entry's field begins behind its 3 letters. */
	refused(&img, d + 49, 2, 2);  /* not zip64 */
	refused(&img, d + 51, 16, 2); /* no place in it */
	refused(&img, d + 51, 25, 2); /* longer than what is there */
	refused(&img, d + 53, UINT64_MAX, 8);
	refused(&img, d + 61, UINT64_MAX, 8);
	refused(&img, d + 69, UINT64_MAX, 8);
	refused(&img, d + 69, UINT64_MAX - 32, 8);
	refused(&img, d + 69, d, 8);
	refused(&img, e + 4, 45, 8);
	refused(&img, e + 16, 1, 4);
	refused(&img, e + 24, 2, 8);
	refused(&img, e + 32, UINT64_MAX, 8);
	refused(&img, e + 40, UINT64_MAX, 8);
	refused(&img, e + 48, UINT64_MAX, 8);
	refused(&img, e + 48, 0, 8);
	refused(&img, e + 56 + 4, 1, 4);
	refused(&img, e + 56 + 8, 0, 8);
	refused(&img, e + 56 + 8, UINT64_MAX, 8);
	refused(&img, e + 56 + 16, 2, 4);
	refused(&img, e + 76 + 8, 0x00020002, 4); /* disagree */
	CHECK_EQ(try_all(&img), 0);
	free(img.at);
}

static void doubles(void)
{
	struct zip_writer w = { .zip64 = false };
	struct image img;

	image_new(&img);
	w.img = &img;
	zip_add(&w, "a", "1", 1);
	zip_add(&w, "b", "2", 1);
	zip_add(&w, "a", "3", 1);
	zip_finish(&w);
	CHECK_EQ(try_open(&img), -ENOMSG);
	/* Two names for the same bytes. */
	img.len = 0;
	w.n = 0;
	zip_add(&w, "a", "1", 1);
	w.e[w.n] = w.e[0];
	w.e[w.n++].name[0] = 'b';
	zip_finish(&w);
	CHECK_EQ(try_open(&img), -ENOMSG);
	free(img.at);
}

static void comments(void)
{
	struct zip_writer w;
	struct image img;

	make(&img, &w, false);
	for (int i = 0; i < 65535; i++)
		image_put(&img, i % 2 ? "P" : "K", 1);
	put_le(img.at + w.end + 20, 65535, 2);
	CHECK_EQ(try_all(&img), 0);
	put_le(img.at + w.end + 20, 65534, 2);
	CHECK_EQ(try_all(&img), -ENOMSG);
	free(img.at);
}

static void inflates_to_less(void)
{
	struct zip_writer w;
	struct image img;

	image_new(&img);
	memset(&w, 0, sizeof(w));
	w.img = &img;
	zip_add_deflated(&w, "a", text, sizeof(text));
	w.e[0].size += 1;
	zip_finish(&w);
	CHECK_EQ(try_all(&img), -ENOMSG);
	free(img.at);
}

static void bounded(void)
{
	struct reader_source s;
	struct zip *z = NULL;
	struct zip_writer w;
	struct image img;

	make(&img, &w, false);
	s = image_source(&img);
	CHECK_EQ(zip_open(&s, 256, &z), -E2BIG);
	CHECK_EQ(zip_open(&s, 600, &z), 0);
	zip_free(z);
	free(img.at);
}

/* What is peeked at is not what is read. */
struct two_faced {
	struct image img;
	struct image rotten;
	unsigned n_peeks, n_reads;
};

static int read_right(void *arg, void *buf, size_t len, uint64_t off)
{
	struct two_faced *t = arg;

	t->n_reads++;
	return image_read(&t->img, buf, len, off);
}

static int peek_wrong(void *arg, void *buf, size_t len, uint64_t off)
{
	struct two_faced *t = arg;

	t->n_peeks++;
	return image_read(&t->rotten, buf, len, off);
}

/* Any bit of a local header: the place is the right one all the same, and
 * where nothing is wrong it costs no read. */
static void peeks(void)
{
	struct two_faced t = { 0 };
	struct reader_source s = { .read = read_right,
				   .peek = peek_wrong,
				   .arg = &t };
	CLEANUP(zip_freep) struct zip *z = NULL;
	struct zip_writer w;
	uint64_t want, off;
	unsigned n;
	size_t i;

	make(&t.img, &w, false);
	make(&t.rotten, &w, false);
	s.size = t.img.len;
	CHECK_EQ(zip_open(&s, 1 << 20, &z), 0);
	CHECK(zip_find(z, "r/a", 3, &i));
	CHECK_EQ(t.n_peeks, 0);
	n = t.n_reads;
	CHECK_EQ(zip_place(z, i, &want), 0);
	CHECK_EQ(t.n_reads, n);
	for (unsigned bit = 0; bit < 8 * 33; bit++) {
		t.rotten.at[w.e[0].header + bit / 8] ^= 1u << bit % 8;
		CHECK_EQ(zip_place(z, i, &off), 0);
		CHECK_EQ(off, want);
		t.rotten.at[w.e[0].header + bit / 8] ^= 1u << bit % 8;
	}
	CHECK(t.n_reads > n);
	free(t.img.at);
	free(t.rotten.at);
}

int main(void)
{
	peeks();
	for (int zip64 = 0; zip64 < 2; zip64++) {
		reads(zip64);
		truncated(zip64);
		any_byte(zip64);
	}
	lies();
	zip64_lies();
	doubles();
	comments();
	inflates_to_less();
	bounded();
	return 0;
}
