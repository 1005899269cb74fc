/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mount's state as Prometheus text, /ckpt/.ckptfs/metrics.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "fs/hidden.h"

static void head(FILE *f, const char *name, const char *type, const char *help)
{
	fprintf(f, "# HELP ckptfs_%s %s\n# TYPE ckptfs_%s %s\n", name, help,
		name, type);
}

static void gauge(FILE *f, const char *name, const char *help, uint64_t value)
{
	head(f, name, "gauge", help);
	fprintf(f, "ckptfs_%s %" PRIu64 "\n", name, value);
}

static void counter(FILE *f, const char *name, const char *help, uint64_t value)
{
	head(f, name, "counter", help);
	fprintf(f, "ckptfs_%s %" PRIu64 "\n", name, value);
}

static double tier_used(const struct tier_status *t)
{
	return (double)t->used;
}

static double tier_size(const struct tier_status *t)
{
	return (double)t->size;
}

static double tier_rate(const struct tier_status *t)
{
	return (double)t->rate;
}

static double tier_behind(const struct tier_status *t)
{
	return (double)t->behind_bytes;
}

static double tier_seconds(const struct tier_status *t)
{
	return (double)t->behind_ns / 1e9;
}

static double tier_error(const struct tier_status *t)
{
	return t->error[0] != '\0';
}

static const struct {
	const char *name, *help;
	double (*value)(const struct tier_status *t);
} of_tiers[] = {
	{ "tier_used_bytes", "Bytes a tier holds.", tier_used },
	{ "tier_size_bytes", "Bytes a tier may hold.", tier_size },
	{ "tier_rate_bytes", "Bytes a second moved to it lately.", tier_rate },
	{ "tier_behind_bytes", "Accepted bytes not there yet.", tier_behind },
	{ "tier_behind_seconds", "Age of the oldest not there.", tier_seconds },
	{ "tier_error", "1: an error holds its watermark.", tier_error },
};

static void put_tiers(FILE *f, const struct engine_status *st)
{
	for (size_t i = 0; i < sizeof(of_tiers) / sizeof(of_tiers[0]); i++) {
		head(f, of_tiers[i].name, "gauge", of_tiers[i].help);
		for (int l = 0; l < 3; l++)
			if (st->tier[l].name[0])
				fprintf(f, "ckptfs_%s{tier=\"%s\"} %.17g\n",
					of_tiers[i].name, st->tier[l].name,
					of_tiers[i].value(&st->tier[l]));
	}
	/* A double would round these: epoch << 40 | counter. */
	head(f, "watermark", "counter", "Sequence number a tier has reached.");
	for (int l = 0; l < 3; l++)
		if (st->tier[l].name[0])
			fprintf(f,
				"ckptfs_watermark{tier=\"%s\"} %" PRIu64 "\n",
				st->tier[l].name, st->tier[l].seq);
}

static void put_text(FILE *f, const struct engine_status *st)
{
	put_tiers(f, st);
	gauge(f, "passthrough", "1: files pass through the kernel.",
	      st->passthrough);
	gauge(f, "open_inodes", "Files that are open.", st->n_open);
	gauge(f, "unsealed_inodes", "Inodes being written.", st->n_unsealed);
	gauge(f, "unflushed_versions", "Versions not on NVMe yet.",
	      st->n_unflushed);
	gauge(f, "unflushed_bytes", "Their bytes.", st->unflushed_bytes);
	counter(f, "spilled_total", "Files that went to NVMe directly.",
		st->n_spilled);
	counter(f, "evicted_total", "Faster copies dropped.", st->n_evicted);
	counter(f, "fetched_total", "Versions fetched from the remote.",
		st->n_fetched);
	counter(f, "fetched_bytes_total", "Bytes fetched from the remote.",
		st->fetched_bytes);
	gauge(f, "metadata_memory_bytes", "Memory of both databases.",
	      st->meta.memory);
	gauge(f, "metadata_accepted_bytes", "DRAM the accepted state takes.",
	      st->meta.accepted);
	gauge(f, "metadata_durable_bytes", "NVMe the durable state takes.",
	      st->meta.durable);
	gauge(f, "inodes", "Inodes, an estimate.", st->meta.n_inodes);
}

int metrics_text(struct fs *fs, char **out, size_t *len)
{
	struct engine_status st;
	char *text = NULL;
	FILE *f = open_memstream(&text, len);

	if (!f)
		return -ENOMEM;
	engine_status(fs->engine, &st);
	put_text(f, &st);
	if (fclose(f)) {
		free(text);
		return -ENOMEM;
	}
	*out = text;
	return 0;
}
