// Package lineage keeps a record of what streams have handed out, so that it can be
// said later which samples a step of a job held, on which rank.
//
// A plan is a pure function, so of a stream in its order nothing is kept but its ticket and
// one integer: how many rows it has handed out. Of a stream in another order the deviations
// are kept besides: of each batch, which of the rows that it had not handed out before it
// took, in runs or as a bitmap, whichever is shorter. Samples that could not be read, and
// their substitutes, are no function of the plan, and are kept as they are.
//
// The record is a ring of files in a directory ([Log]): the oldest goes when a new one is
// begun. Each file can be read by itself: a stream that goes on in a new file begins there with
// the ticket that resumes it. What is written is in the kernel's hands before the batch is
// sent, so a process that is killed loses nothing of it.
//
// The package knows rows by their numbers in a stream; it knows no plans, positions or ids,
// and nobody's rights.
package lineage
