/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of the torch reader, and the DCP reader, have between them:
 * PyTorch's words in pickles. Internal. No state.
 */
#ifndef CKPT_PROVIDERS_READER_TORCH_H
#define CKPT_PROVIDERS_READER_TORCH_H

#include "providers/reader_catalog.h"
#include "providers/reader_pickle.h"

/* Is ref a dtype ("torch.bfloat16"), of a type that has a number here? */
bool torch_dtype(const struct pickle *p, uint32_t ref, enum tensor_type *out);

/* The same for a storage's class ("torch.FloatStorage"); untyped: u8. */
bool torch_storage_class(const struct pickle *p, uint32_t ref,
			 enum tensor_type *out);

/* The tuple in a torch.Size, or a tuple itself; 0 if ref is neither. */
uint32_t torch_size(const struct pickle *p, uint32_t ref);

/*
 * The numbers of a tuple of sizes (out: TENSOR_DIMS_MAX of them).
 *
 *   -ENOMSG  not such a tuple
 *   -ERANGE  more than TENSOR_DIMS_MAX
 */
MUST_CHECK int torch_dims(const struct pickle *p, uint32_t ref, uint64_t *out,
			  unsigned *n);

/* Where the bytes of storages are. */
struct torch_storages {
	/* Place and length of the storage that the pickle calls `key`.
	 * -ENOMSG: there is none; or 0 or -errno of a read. */
	int (*find)(void *arg, struct pickle_text key, uint64_t *off,
		    uint64_t *len);
	void *arg;
	bool swapped; /* big-endian */
};

/*
 * Add the tensors of a pickle to the catalog, with names that begin with
 * `prefix` (NULL: none).
 *
 *   -ENOMSG  a tensor is described in a way that PyTorch would not load
 *   -E2BIG   too deep, too many steps, or the catalog is full
 *   -ENOMEM, and what find returned
 */
MUST_CHECK int torch_walk(const struct pickle *p, const char *prefix,
			  const struct torch_storages *storages,
			  struct catalog *to);

#endif
