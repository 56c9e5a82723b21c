// Package simulate runs whole clusters in virtual time: the engines, caches, members, layouts and look-ahead that
// servers consist of, with models in the place of what they stand on: links, disks, stores, processors, and the
// programs that train.
//
// A [File] describes what there is and what happens; [Run] lets it happen and makes a [Report]. Blobs have sizes and no
// content. Time is that of a bubble of testing/synctest: it stands still while anything computes, and jumps to the next
// moment in which something happens. So a report does not depend on how fast the machine is.
//
// What is not here: gRPC and Arrow Flight, whose costs are charged as processor time and latency; the scaling of
// caches; and anything that a formula would do as well.
package simulate
