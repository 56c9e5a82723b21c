// Package vorbis decodes Ogg Vorbis I: the pages of a file, its headers, and any part of its samples.
//
// It was written from the Vorbis I specification (Xiph.Org Foundation, https://xiph.org/vorbis/doc/Vorbis_I_spec.html)
// and RFC 3533, which has Ogg's pages. Codebooks of all kinds of lookup, floors 0 and 1, residues 0 to 2 and
// coupling are decoded. Samples are float32 and equal bit for bit on every machine.
//
// Samples are counted as libsndfile counts them: the first page's position says where the stream begins, what it has
// too much before position 0 is left out, and the last page's position is its end. Pages of other streams between
// those of the first are skipped, and so is another stream that comes after it: of a chain, the first link is read.
//
// Bytes are hostile: whatever they are, nothing panics, and each sample that is asked for costs a bounded amount of
// work. Memory has the bound that [Working] gives. What is wrong is a program.ErrDamaged that says where. Pages that
// are decoded have to have their checksum, follow each other, and end at the position that they say.
// The package does no I/O and starts no goroutine.
package vorbis
