// Package upload takes in what a client streams, and stores it by the catalog of its caller: rows as a snapshot, changes of
// rows that are there, positions as a selection.
//
//   - incoming.go: messages become record batches, in turns and within memory
//   - command.go: what a put says of itself, and the message that commits it
//   - columns.go, rows.go: columns of a stream become those of a dataset
//   - results.go: what the client is told meanwhile
//   - put.go: all of it together
package upload
