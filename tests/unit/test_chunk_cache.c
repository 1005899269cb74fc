/* SPDX-License-Identifier: Apache-2.0 */
/* The chunk cache: each chunk is loaded once, by whoever comes first; the
 * least recently read makes room; a failed load is told and forgotten. */
#include <stdatomic.h>

#include "engine/chunk_cache.h"
#include "engine/tier.h"
#include "tests/unit/check.h"

#define N_THREADS 4
#define N_ROUNDS 2000

static struct chunk_cache *cache;
static atomic_int n_loads;
static int load_error;

static int load(void *arg, uint64_t index, void *buf, size_t *len)
{
	(void)arg;
	n_loads++;
	if (load_error)
		return load_error;
	memset(buf, (int)index, CHUNK_LEN);
	*len = index == 9 ? 10 : CHUNK_LEN;
	return 0;
}

static void expect(uint64_t version, uint64_t index, int loads)
{
	char byte = 77;

	n_loads = 0;
	CHECK_EQ(chunk_cache_read(cache, version, index, &byte, 1, 5, load,
				  NULL),
		 0);
	CHECK_EQ(byte, (char)index);
	CHECK_EQ(n_loads, loads);
}

static void loads_once(void)
{
	expect(1, 1, 1);
	expect(1, 1, 0);
	expect(2, 1, 1);
	expect(1, 1, 0);
}

static void makes_room(void)
{
	expect(3, 0, 1);
	for (uint64_t i = 1; i < CHUNKS_KEPT; i++)
		expect(3, i, 1);
	expect(3, 0, 0);
	expect(3, CHUNKS_KEPT, 1); /* for chunk 1 */
	expect(3, 0, 0);
	expect(3, 1, 1);
}

static void tells_errors(void)
{
	char buf[16];

	load_error = -EIO;
	CHECK_EQ(chunk_cache_read(cache, 4, 0, buf, 1, 0, load, NULL), -EIO);
	load_error = 0;
	expect(4, 0, 1);
	/* A last chunk that is shorter than was asked for. */
	CHECK_EQ(chunk_cache_read(cache, 4, 9, buf, 8, 2, load, NULL), 0);
	CHECK_EQ(chunk_cache_read(cache, 4, 9, buf, 8, 3, load, NULL),
		 -EBADMSG);
	CHECK_EQ(chunk_cache_read(cache, 4, 9, buf, 1, CHUNK_LEN - 1, load,
				  NULL),
		 -EBADMSG);
}

static void gives_memory_back(void)
{
	expect(5, 0, 1);
	chunk_cache_trim(cache, INT64_C(3600000000000));
	expect(5, 0, 0);
	chunk_cache_trim(cache, 0);
	expect(5, 0, 1);
}

static void *reader(void *arg)
{
	unsigned seed = (unsigned)(uintptr_t)arg;
	char byte;

	for (int i = 0; i < N_ROUNDS; i++) {
		uint64_t index = (unsigned)rand_r(&seed) % (CHUNKS_KEPT + 3);

		if (index == 9)
			continue;
		CHECK_EQ(chunk_cache_read(cache, 6, index, &byte, 1, 99, load,
					  NULL),
			 0);
		CHECK_EQ(byte, (char)index);
	}
	return NULL;
}

static void serves_many(void)
{
	pthread_t threads[N_THREADS];

	for (uintptr_t i = 0; i < N_THREADS; i++)
		CHECK(!pthread_create(&threads[i], NULL, reader, (void *)i));
	for (int i = 0; i < N_THREADS; i++)
		CHECK(!pthread_join(threads[i], NULL));
}

int main(void)
{
	CHECK_EQ(chunk_cache_new(&cache), 0);
	loads_once();
	makes_room();
	tells_errors();
	gives_memory_back();
	serves_many();
	chunk_cache_free(cache);
	return 0;
}
