/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files within files: whoever copies elements sees one kind of source, and does
 * not know whether a file, a range of one or an inflating stream is behind it.
 */
#include <errno.h>
#include <string.h>
#include <zlib.h>

#include "providers/reader_bytes.h"
#include "providers/reader_inner.h"

static int range_read(void *arg, void *buf, size_t len, uint64_t off)
{
	const struct range_source *r = arg;

	return r->of->read(r->of->arg, buf, len, r->off + off);
}

int range_source(struct range_source *range, const struct reader_source *of,
		 uint64_t off, uint64_t len, struct reader_source *out)
{
	if (off > of->size || len > of->size - off)
		return -EBADMSG;
	range->of = of;
	range->off = off;
	*out = (struct reader_source){
		.size = len,
		.read = range_read,
		.arg = range,
	};
	return 0;
}

#define INFLATE_BUF (64 << 10)

struct inflater {
	struct range_source range;
	struct reader_source in;
	uint64_t in_at;  /* what comes next of in */
	uint64_t out_at; /* and of what it inflates to */
	z_stream z;
	bool ended;
	uint8_t buf[INFLATE_BUF];
	uint8_t skip[INFLATE_BUF];
};

static int refill(struct inflater *f)
{
	uint64_t left = f->in.size - f->in_at;
	size_t len = left < INFLATE_BUF ? (size_t)left : INFLATE_BUF;
	int rc;

	if (!len)
		return -EBADMSG; /* the stream says that more follows */
	rc = f->in.read(f->in.arg, f->buf, len, f->in_at);
	if (rc)
		return rc;
	f->in_at += len;
	f->z.next_in = f->buf;
	f->z.avail_in = (uInt)len;
	return 0;
}

/* The next len bytes. */
static int inflate_more(struct inflater *f, void *to, uInt len)
{
	int rc, z;

	f->z.next_out = to;
	f->z.avail_out = len;
	while (f->z.avail_out) {
		if (f->ended)
			return -EBADMSG;
		z = inflate(&f->z, Z_NO_FLUSH);
		if (z == Z_MEM_ERROR)
			return -ENOMEM;
		/* Asked only now: without input it may still have output. */
		if (z == Z_BUF_ERROR && !f->z.avail_in) {
			rc = refill(f);
			if (rc)
				return rc;
			continue;
		}
		if (z != Z_OK && z != Z_STREAM_END)
			return -EBADMSG;
		f->ended = z == Z_STREAM_END;
	}
	f->out_at += len;
	return 0;
}

static int rewind_to_start(struct inflater *f)
{
	if (inflateReset(&f->z) != Z_OK)
		return -EBADMSG;
	f->z.avail_in = 0;
	f->in_at = f->out_at = 0;
	f->ended = false;
	return 0;
}

static int inflater_read(void *arg, void *buf, size_t len, uint64_t off)
{
	struct inflater *f = arg;
	uint8_t *to = buf;
	int rc = off < f->out_at ? rewind_to_start(f) : 0;

	while (!rc && f->out_at < off) {
		uint64_t part = off - f->out_at;

		if (part > sizeof(f->skip))
			part = sizeof(f->skip);
		rc = inflate_more(f, f->skip, (uInt)part);
	}
	while (!rc && len) {
		uInt part = len < (1U << 30) ? (uInt)len : 1U << 30;

		rc = inflate_more(f, to, part);
		to += part;
		len -= part;
	}
	return rc;
}

static int read_npy(struct inflater *f, struct npy_header *header)
{
	CLEANUP(free_p) uint8_t *text = NULL;
	uint8_t prefix[NPY_PREFIX_LEN];
	size_t len;
	int rc = inflater_read(f, prefix, sizeof(prefix), 0);

	if (!rc)
		rc = npy_header_len(prefix, &len);
	if (rc)
		return rc == -ENOMSG ? -EBADMSG : rc;
	text = malloc(len);
	if (!text)
		return -ENOMEM;
	rc = inflater_read(f, text, len, 0);
	if (!rc)
		rc = npy_header_parse(text, len, header);
	return rc == -ENOMSG ? -EBADMSG : rc;
}

void inflater_free(struct inflater *inflater)
{
	if (inflater)
		inflateEnd(&inflater->z);
	free(inflater);
}

static void inflater_freep(struct inflater **inflater)
{
	inflater_free(*inflater);
}

int inflater_new(const struct reader_source *source, uint64_t off, uint64_t len,
		 struct inflater **inflater, struct npy_header *header,
		 struct reader_source *out)
{
	CLEANUP(inflater_freep) struct inflater *f = NULL;
	int rc;

	f = malloc(sizeof(*f));
	if (!f)
		return -ENOMEM;
	memset(f, 0, offsetof(struct inflater, buf));
	rc = range_source(&f->range, source, off, len, &f->in);
	if (rc)
		return rc;
	if (inflateInit2(&f->z, -MAX_WBITS) != Z_OK)
		return -ENOMEM;
	rc = read_npy(f, header);
	if (rc)
		return rc;
	*out = (struct reader_source){
		.size = header->len + header->data_len,
		.read = inflater_read,
		.arg = f,
	};
	*inflater = MOVE(f);
	return 0;
}

int nested_scan(const struct reader_source *range, const struct tensor *t,
		const struct tensor_piece *p, struct tensor_table **out)
{
	CLEANUP(tensor_table_freep) struct tensor_table *table = NULL;
	const struct tensor *inner;
	int rc = tensor_table_scan(range, "", &table);

	if (rc == -ENOMSG || rc == -E2BIG)
		return -EBADMSG;
	if (rc)
		return rc;
	if (tensor_table_count(table) != 1)
		return -EBADMSG;
	inner = tensor_table_at(table, 0);
	if (inner->type != t->type || inner->n_dims != t->n_dims ||
	    inner->n_pieces != 1 || inner->pieces->coding != TENSOR_PLAIN ||
	    inner->pieces->file)
		return -EBADMSG;
	/* Its one piece covers it: that has the same shape. */
	for (unsigned i = 0; i < t->n_dims; i++)
		if (inner->shape[i] != p->shape[i])
			return -EBADMSG;
	*out = MOVE(table);
	return 0;
}
