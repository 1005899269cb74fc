/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations, encoded: kind u8, column family u8, key length u32, value
 * length u32, key, value.
 */
#include "metadata/operation.h"

#include <errno.h>

#define OP_HEAD 10

static uint8_t *add(struct bytes *b, enum op_kind kind, enum cf cf,
		    struct slice key, size_t val_len)
{
	uint8_t *p = bytes_add(b, OP_HEAD + key.len + val_len);

	if (!p)
		return NULL;
	p[0] = (uint8_t)kind;
	p[1] = (uint8_t)cf;
	put_le(p + 2, key.len, 4);
	put_le(p + 6, val_len, 4);
	memcpy(p + OP_HEAD, key.p, key.len);
	return p + OP_HEAD + key.len;
}

uint8_t *op_put_room(struct bytes *b, enum cf cf, struct slice key, size_t len)
{
	return add(b, OP_PUT, cf, key, len);
}

void op_put(struct bytes *b, enum cf cf, struct slice key, const void *val,
	    size_t len)
{
	uint8_t *p = add(b, OP_PUT, cf, key, len);

	if (p && len)
		memcpy(p, val, len);
}

void op_del(struct bytes *b, enum cf cf, struct slice key)
{
	add(b, OP_DEL, cf, key, 0);
}

void op_del_range(struct bytes *b, enum cf cf, struct slice from,
		  struct slice to)
{
	uint8_t *p = add(b, OP_DEL_RANGE, cf, from, to.len);

	if (p)
		memcpy(p, to.p, to.len);
}

int op_next(struct reader *r, struct op *out)
{
	uint64_t kind = read_le(r, 1), cf = read_le(r, 1);
	size_t klen = read_le(r, 4), vlen = read_le(r, 4);
	const uint8_t *key = read_bytes(r, klen), *val = read_bytes(r, vlen);

	if (r->bad || kind < OP_PUT || kind > OP_DEL_RANGE || cf >= CF_MAX)
		return -EUCLEAN;
	*out = (struct op){
		.kind = (enum op_kind)kind,
		.cf = (enum cf)cf,
		.key = { key, klen },
		.val = { val, vlen },
	};
	return 0;
}
