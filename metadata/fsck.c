/* SPDX-License-Identifier: Apache-2.0 */
#include "metadata/internal.h"
int meta_fsck(struct meta *m, finding_fn *fn, void *arg, uint64_t *n) { (void)m; (void)fn; (void)arg; *n = 0; return 0; }
