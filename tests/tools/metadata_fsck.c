/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metadata_fsck DURABLE ACCEPTED: opens the durable database as after a power
 * cut (ACCEPTED is an empty folder) and prints what is wrong with its records.
 * It changes the database: give it a copy. Exit status 1 if there is anything.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "metadata/metadata.h"

static void print(void *arg, const char *line)
{
	(void)arg;
	puts(line);
}

int main(int argc, char **argv)
{
	struct meta_config config = { 0 };
	struct meta_opened opened;
	struct meta *m;
	uint64_t n = 0;
	int err;

	if (argc != 3) {
		fprintf(stderr, "usage: metadata_fsck DURABLE ACCEPTED\n");
		return 2;
	}
	config.durable_dir = argv[1];
	config.accepted_dir = argv[2];
	err = meta_open(&config, &opened, &m);
	if (!err) {
		err = meta_fsck(m, print, NULL, &n);
		meta_close(m);
	}
	if (err)
		fprintf(stderr, "metadata_fsck: %s: %s\n", argv[1],
			strerror(-err));
	return err || n;
}
