/* SPDX-License-Identifier: Apache-2.0 */
/*
 * File layouts: providers arranged so that frameworks read the result with no
 * code of ours. Part of libckpt's public headers (installed as ckpt/layout.h).
 *
 * A layout is built, filled, and finished into one provider (a composite),
 * which is added to a capture. Every call takes over the providers it is given,
 * also if it fails; names are copied. Threads: one at a time for each layout.
 * Errors: 0 or -errno; -EINVAL a name, shape or size that the format cannot
 * hold; -EEXIST a name twice; -ENOMEM.
 */
#ifndef CKPT_LAYOUT_H
#define CKPT_LAYOUT_H

#include "ckpt.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * safetensors (huggingface/safetensors, README "Format"): 8 bytes length of the
 * header, little-endian; a JSON header, padded with spaces to a multiple of 8;
 * the tensors, without gaps. type: as the format spells it ("F32", "BF16",
 * "F8_E4M3", "BOOL", …). The provider yields the elements in C order,
 * little-endian; its size must be known and be that of shape and type. As the
 * library does, tensors are laid out by falling size of the type, then name.
 */
struct ckpt_safetensors;
CKPT_PUBLIC CKPT_MUST_CHECK int ckpt_safetensors_new(
	struct ckpt_safetensors **out);
CKPT_PUBLIC CKPT_MUST_CHECK int ckpt_safetensors_add(
	struct ckpt_safetensors *st, const char *name, const char *type,
	const uint64_t *shape, size_t n_dims, struct ckpt_provider *p);
/* "__metadata__": strings. */
CKPT_PUBLIC CKPT_MUST_CHECK int ckpt_safetensors_metadata(
	struct ckpt_safetensors *st, const char *key, const char *value);
/* Frees st, also if it fails. */
CKPT_PUBLIC CKPT_MUST_CHECK int ckpt_safetensors_finish(
	struct ckpt_safetensors *st, struct ckpt_provider **out);
CKPT_PUBLIC void ckpt_safetensors_free(struct ckpt_safetensors *st);

/*
 * The torch zip format (torch.save since 1.6; caffe2/serialize): an
 * uncompressed zip (zip64 where needed) with the records ROOT/data.pkl,
 * ROOT/byteorder, ROOT/version, ROOT/.format_version,
 * ROOT/.storage_alignment and ROOT/data/KEY for each storage, whose bytes begin
 * at multiples of 64. Storages lie first, so that devices stream while
 * data.pkl is made. CRC-32s are true ones: `unzip -t` passes.
 *
 * root: the folder inside the zip; torch.save takes the file's name without
 * its extension.
 */
struct ckpt_torch;
CKPT_PUBLIC CKPT_MUST_CHECK int ckpt_torch_new(const char *root,
					       struct ckpt_torch **out);
/* The bytes of ROOT/data/KEY; size known. */
CKPT_PUBLIC CKPT_MUST_CHECK int ckpt_torch_storage(struct ckpt_torch *t,
						   const char *key,
						   struct ckpt_provider *p);
/* ROOT/data.pkl; its size may be unknown. Once. */
CKPT_PUBLIC CKPT_MUST_CHECK int ckpt_torch_pickle(struct ckpt_torch *t,
						  struct ckpt_provider *p);
/* Frees t, also if it fails. */
CKPT_PUBLIC CKPT_MUST_CHECK int ckpt_torch_finish(struct ckpt_torch *t,
						  struct ckpt_provider **out);
CKPT_PUBLIC void ckpt_torch_free(struct ckpt_torch *t);

#ifdef __cplusplus
}
#endif

#endif
