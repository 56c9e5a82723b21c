// Package upload receives a client's stream and stores it by the catalog of its caller: rows
// as a snapshot, changes of existing rows as the next one, positions as a selection. It does
// not check rights: the catalog does.
//
//   - incoming.go: messages become record batches, in turns and within the memory limits
//   - command.go: the descriptor of a put, and the message that commits it
//   - columns.go, rows.go: columns of a stream become those of a dataset
//   - results.go: the results that the client gets in the meantime
//   - put.go: the whole of a put; begin here
package upload
