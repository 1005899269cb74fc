/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reading side: what tensors lie in a file that some framework saved, and
 * where. Front header; engine/ includes this and nothing else of the folder
 * but reader_*.h.
 *
 * A format is one `const struct reader_ops` at the end of its file and one
 * line in the table of reader.c. It looks at bytes only through a source, so
 * the same code reads a DRAM copy, an NVMe file, a range of a remote object, a
 * Python buffer and a fuzzer's input. What it does not know, or what is torn,
 * hostile or too large is "opaque" (-ENOMSG), never a fault.
 *
 * Memory of one scan is bounded by READER_MEMORY_MAX, its reads by the
 * size of the headers that it needs: bytes of tensors are not read.
 *
 * Threads: any; nothing here has state of its own.
 */
#ifndef CKPT_PROVIDERS_READER_H
#define CKPT_PROVIDERS_READER_H

#include <stdbool.h>

#include "providers/compiler.h"

#define TENSOR_DIMS_MAX 32
#define TENSOR_NAME_MAX 4096
#define READER_MEMORY_MAX (UINT64_C(256) << 20)
#define READER_TENSORS_MAX 4000000

/* Where bytes come from. */
struct reader_source {
	uint64_t size; /* of the whole file, bytes */
	/* Fill buf with [off, off + len), all of it or nothing; the range lies
	 * within size. 0 or -errno, which the scan passes on. */
	int (*read)(void *arg, void *buf, size_t len, uint64_t off);
	/* The same, but perhaps not verified, where that is much cheaper: only
	 * for what verified bytes confirm. NULL: there is no such way. */
	int (*peek)(void *arg, void *buf, size_t len, uint64_t off);
	void *arg;
};

/*
 * Element types. The number is part of a stored record (never renumber). Block
 * quantised ones of GGUF are TENSOR_PACKED: their bytes can be copied, not
 * sliced.
 */
enum tensor_type {
	TENSOR_PACKED = 0,
	TENSOR_BOOL = 1,
	TENSOR_U8 = 2,
	TENSOR_I8 = 3,
	TENSOR_U16 = 4,
	TENSOR_I16 = 5,
	TENSOR_U32 = 6,
	TENSOR_I32 = 7,
	TENSOR_U64 = 8,
	TENSOR_I64 = 9,
	TENSOR_F16 = 10,
	TENSOR_BF16 = 11,
	TENSOR_F32 = 12,
	TENSOR_F64 = 13,
	TENSOR_F8_E4M3FN = 14,
	TENSOR_F8_E5M2 = 15,
	TENSOR_F8_E4M3FNUZ = 16,
	TENSOR_F8_E5M2FNUZ = 17,
	TENSOR_F8_E8M0FNU = 18,
	TENSOR_C32 = 19, /* complex of two f16 */
	TENSOR_C64 = 20,
	TENSOR_C128 = 21,
	TENSOR_F4_X2 = 22,   /* two f4_e2m1fn in a byte */
	TENSOR_UNKNOWN = 23, /* TENSOR_BY_NAME, not resolved yet: n_dims 0 */
	TENSOR_TYPES,
};

/* Bytes of an element; 0 for TENSOR_PACKED, TENSOR_UNKNOWN and no type. */
size_t tensor_type_len(enum tensor_type type);

/* As PyTorch calls it, without "torch.": "float32", "bfloat16", …; "packed",
 * "unknown". */
const char *tensor_type_name(enum tensor_type type);

/* How the bytes of a piece lie in its file. */
enum tensor_coding {
	TENSOR_PLAIN = 0,   /* elements, by strides */
	TENSOR_DEFLATE = 1, /* [off, off + len) inflates to a .npy file */
	TENSOR_NESTED = 2,  /* [off, off + len) is itself a file with exactly
			       one tensor (DCP: a torch zip of its own) */
	TENSOR_BY_NAME = 3, /* the tensor of the same name in file; what it
			       is, tensor_table_resolve() finds out */
};

/*
 * A box of a tensor: elements start[i] .. start[i] + shape[i] of dimension i,
 * and where they lie. A format may leave the arrays NULL; what a scan or a
 * table hands out has them (stride: PLAIN only).
 */
struct tensor_piece {
	const char *file; /* path, relative to the folder of the file that was
			     scanned, without ".."; NULL: that file itself */
	enum tensor_coding coding;
	bool swapped; /* PLAIN: big-endian elements */
	uint64_t off; /* PLAIN: of the box's first element. Bytes. */
	uint64_t len; /* PLAIN: from off to the end of the last element */
	const uint64_t *start;  /* n_dims each. NULL: all 0 */
	const uint64_t *shape;  /* NULL: the tensor's */
	const uint64_t *stride; /* PLAIN: elements. NULL: C order of shape */
};

/* A named typed array. n_dims 0: one element. */
struct tensor {
	const char *name; /* UTF-8, not empty; nested dicts joined with "." */
	enum tensor_type type;
	unsigned n_dims;
	const char *type_name; /* as the format calls it ("Q4_K"), or NULL */
	const uint64_t *shape; /* n_dims; NULL only if that is 0 */
	/*
	 * They cover the tensor without overlap; none if it has no elements.
	 * TENSOR_PACKED: one PLAIN piece, whole. TENSOR_UNKNOWN: one BY_NAME.
	 */
	const struct tensor_piece *pieces;
	unsigned n_pieces;
	bool shared; /* some other tensor before it has some of its bytes */
};

/* Elements of t; what a scan or a table hands out never overflows. */
uint64_t tensor_elements(const struct tensor *t);

/*
 * Gives the source of the file that a piece names (NULL: the file itself). The
 * source stays the callee's and valid until the call that it was given to
 * returns. -errno is passed on.
 */
typedef int tensor_open(void *arg, const char *file, struct reader_source *out);

/*
 * Called for each tensor, in the order of the file; names are unique within a
 * scan. What it points to lives until it returns. Not 0: the scan stops and
 * returns that.
 */
typedef int tensor_found(void *arg, const struct tensor *t);

struct reader_ops {
	const char *name; /* "safetensors"; [a-z0-9-]+ */

	/*
	 * Could this be one, by its first bytes (at most READER_HEAD_LEN of
	 * them, fewer if the file is shorter) and the last part of its name?
	 * Cheap; reads nothing.
	 */
	bool (*knows)(const uint8_t *head, size_t len, const char *name);

	/*
	 * Each tensor that is found is checked (reader_check.h) by found():
	 * a scan need not ask twice whether off + len lies within the file,
	 * names are unique, or shapes overflow. It must not read what is beyond
	 * the source's size.
	 *
	 *   -ENOMSG  not this format after all, or broken: opaque
	 *   -E2BIG   beyond READER_MEMORY_MAX or READER_TENSORS_MAX: opaque
	 *   -ENOMEM, and what source->read or found returned
	 */
	int (*scan)(const struct reader_source *source, tensor_found *found,
		    void *arg);
};

#define READER_HEAD_LEN 256

/* The format that knows such a file, or NULL. name: the last part. */
const struct reader_ops *reader_find(const uint8_t *head, size_t len,
				     const char *name);

/*
 * Find the tensors of a file. *format (may be NULL) is set when 0 is returned.
 * If one format finds nothing the next that knows the file is asked; found()
 * is called only for the one that is right (results are held back until its
 * scan has ended, so a broken file yields none).
 *
 *   -ENOMSG  opaque
 *   others   as scan()
 */
MUST_CHECK int reader_scan(const struct reader_source *source, const char *name,
			   const struct reader_ops **format,
			   tensor_found *found, void *arg);

#endif
