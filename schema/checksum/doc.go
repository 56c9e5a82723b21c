// Package checksum computes the checksum of blobs, XXH3 with 64 bits and seed 0, over memory that is not in the
// processor's cache: of bytes where they lie, and of bytes as they are copied.
//
// A library computes it where bytes are few, and on processors that this package has no code for. What is here is how
// many bytes are brought from memory, looked at once, and written past the cache. What a blob is, and what becomes of
// one that is wrong, is said elsewhere.
package checksum
