/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The few idioms that files of this folder share. The folder stands alone (the
 * Python package is built from it), so it does not see metadata/compiler.h;
 * where a macro has the same name there, it is the same, word for word.
 */
#ifndef CKPT_PROVIDERS_COMPILER_H
#define CKPT_PROVIDERS_COMPILER_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#ifndef MUST_CHECK
#define MUST_CHECK __attribute__((warn_unused_result))
#endif
#ifndef CLEANUP
#define CLEANUP(fn) __attribute__((cleanup(fn)))
#endif
#ifndef MOVE
#define MOVE(p)                          \
	({                               \
		__auto_type moved = (p); \
		(p) = NULL;              \
		moved;                   \
	})
#endif
#ifndef CONTAINER_OF
#define CONTAINER_OF(ptr, type, member) \
	((type *)((char *)(ptr)-offsetof(type, member)))
#endif

#endif
