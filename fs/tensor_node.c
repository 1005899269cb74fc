/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The nodes that the kernel knows, by number and by what they stand for. One
 * goes when the kernel has forgotten it as often as it looked it up; so there
 * are never more than the kernel has inodes of them.
 */
#include <errno.h>
#include <string.h>
#include <sys/queue.h>

#include "fs/tensor_tree.h"

#define N_BUCKETS 4096u

struct entry {
	LIST_ENTRY(entry) by_id, by_key;
	uint64_t id;
	uint64_t nlookup;
	struct tensor_node node;
};

LIST_HEAD(entries, entry);

struct tensor_nodes {
	struct mutex lock;
	uint64_t next;
	struct entries by_id[N_BUCKETS], by_key[N_BUCKETS];
};

int tensor_nodes_new(struct tensor_nodes **out)
{
	struct tensor_nodes *n = calloc(1, sizeof(*n));

	if (!n)
		return -ENOMEM;
	mutex_init(&n->lock);
	*out = n;
	return 0;
}

static void entry_free(struct entry *e)
{
	if (e)
		free(e->node.name);
	free(e);
}

void tensor_nodes_free(struct tensor_nodes *nodes)
{
	struct entry *e;

	if (!nodes)
		return;
	for (unsigned i = 0; i < N_BUCKETS; i++)
		while ((e = LIST_FIRST(&nodes->by_id[i]))) {
			LIST_REMOVE(e, by_id);
			entry_free(e);
		}
	mutex_fini(&nodes->lock);
	free(nodes);
}

static unsigned bucket_of_id(uint64_t id)
{
	return (unsigned)id % N_BUCKETS;
}

static unsigned bucket_of_key(const struct tensor_node *n)
{
	uint64_t h = n->version;

	for (const char *p = n->name; p && *p; p++)
		h = (h ^ (unsigned char)*p) * UINT64_C(0x100000001b3);
	return (unsigned)(h >> 32) % N_BUCKETS;
}

static bool same(const struct tensor_node *a, const struct tensor_node *b)
{
	if (a->version != b->version || a->ino != b->ino ||
	    a->size != b->size || !a->name != !b->name)
		return false;
	return !a->name || !strcmp(a->name, b->name);
}

static struct entry *find_key_locked(struct tensor_nodes *nodes,
				     const struct tensor_node *node)
	MUST_HOLD(nodes->lock);
static struct entry *find_key_locked(struct tensor_nodes *nodes,
				     const struct tensor_node *node)
{
	struct entry *e;

	LIST_FOREACH(e, &nodes->by_key[bucket_of_key(node)], by_key)
	if (same(&e->node, node))
		return e;
	return NULL;
}

static struct entry *find_id_locked(struct tensor_nodes *nodes, uint64_t id)
	MUST_HOLD(nodes->lock);
static struct entry *find_id_locked(struct tensor_nodes *nodes, uint64_t id)
{
	struct entry *e;

	LIST_FOREACH(e, &nodes->by_id[bucket_of_id(id)], by_id)
	if (e->id == id)
		return e;
	return NULL;
}

static struct entry *entry_new(const struct tensor_node *node)
{
	struct entry *e = calloc(1, sizeof(*e));

	if (!e)
		return NULL;
	e->node = *node;
	if (!node->name)
		return e;
	e->node.name = strdup(node->name);
	if (e->node.name)
		return e;
	free(e);
	return NULL;
}

int tensor_nodes_look_up(struct tensor_nodes *nodes,
			 const struct tensor_node *node, uint64_t *id)
{
	struct entry *spare = entry_new(node), *e;

	if (!spare)
		return -ENOMEM;
	mutex_lock(&nodes->lock);
	e = find_key_locked(nodes, node);
	if (!e) {
		e = MOVE(spare);
		e->id = TENSOR_BIT | TENSOR_NODE_BIT | ++nodes->next;
		LIST_INSERT_HEAD(&nodes->by_id[bucket_of_id(e->id)], e, by_id);
		LIST_INSERT_HEAD(&nodes->by_key[bucket_of_key(&e->node)], e,
				 by_key);
	}
	e->nlookup++;
	*id = e->id;
	mutex_unlock(&nodes->lock);
	entry_free(spare);
	return 0;
}

int tensor_nodes_get(struct tensor_nodes *nodes, uint64_t id,
		     struct tensor_node *out)
{
	struct entry *e;
	int err = -ESTALE;

	mutex_lock(&nodes->lock);
	e = find_id_locked(nodes, id);
	if (e) {
		*out = e->node;
		out->name = e->node.name ? strdup(e->node.name) : NULL;
		err = e->node.name && !out->name ? -ENOMEM : 0;
	}
	mutex_unlock(&nodes->lock);
	return err;
}

void tensor_nodes_forget(struct tensor_nodes *nodes, uint64_t id,
			 uint64_t nlookup)
{
	struct entry *e;

	mutex_lock(&nodes->lock);
	e = find_id_locked(nodes, id);
	if (e && e->nlookup > nlookup) {
		e->nlookup -= nlookup;
		e = NULL;
	}
	if (e) {
		LIST_REMOVE(e, by_id);
		LIST_REMOVE(e, by_key);
	}
	mutex_unlock(&nodes->lock);
	entry_free(e);
}
