// Package metamorphic tests the engine of package fetch by operations drawn at
// random: datasets are imported, dropped and collected, jobs opened, streams
// read, cut off and resumed, selections saved, the spill warmed, all at once, over
// a store that fails in every way that a store can. It goes through the engine's
// public face alone, in virtual time, so that whatever is behind that face may be
// rewritten.
//
// A model says what must come of it, in a few hundred lines without a goroutine:
// which samples a stream serves, each once, in which order and with which bytes;
// which errors are excused by what; and that nothing is left behind.
//
// The operations come from a seed and are a list of JSON lines. A seed that fails
// is run again with ever fewer of them, and what remains is printed:
//
//	go test ./fetch/metamorphic -args -seeds=100000   # as many seeds
//	go test ./fetch/metamorphic -v -args -seed=S      # this one, with what it did
//	go test ./fetch/metamorphic -v -args -ops=FILE    # the operations in a file
//
// There is nothing here to import.
package metamorphic
