/* SPDX-License-Identifier: Apache-2.0 */
/* TEMPORARY: until publish.c and restore_*.c land; delete this file then. */
#include "engine/core.h"
#include <errno.h>
int publish_start(struct engine *e, struct meta *m, struct remote *r, struct publisher **o){(void)e;(void)m;(void)r;(void)o;return -ENOSYS;}
void publish_stop(struct publisher *p){(void)p;}
void publish_kick(struct publisher *p){(void)p;}
uint64_t publish_pin(const struct publisher *p){(void)p;return UINT64_MAX;}
void publish_status(struct publisher *p, struct publish_status *o){(void)p;(void)o;}
int restore_import(struct meta *m, struct remote *r, uint64_t *n, char *w, size_t l){(void)m;(void)r;(void)n;(void)w;(void)l;return 0;}
bool restore_is_done(const struct meta *m){(void)m;return true;}
int fetcher_new(struct meta *m, struct remote *r, struct fetcher **o){(void)m;(void)r;*o=NULL;return 0;}
void fetcher_free(struct fetcher *f){(void)f;}
int fetch_start(struct fetcher *f,const struct fetch_config *c, struct fetch **o){(void)f;(void)c;(void)o;return -EIO;}
int fetch_fd(const struct fetch *f){(void)f;return -1;}
uint64_t fetch_dst_id(const struct fetch *f){(void)f;return 0;}
void fetch_put(struct fetch *f){(void)f;}
int fetch_wait(struct fetch *f, uint64_t a, uint64_t b){(void)f;(void)a;(void)b;return -EIO;}
