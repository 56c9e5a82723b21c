// Package bucket keeps a store in a bucket, without a database: on S3 and compatible
// servers, Google Cloud Storage, Azure Blob Storage, or in a directory.
//
// Begin reading with [Init], [Open] and the type database, which is the store as package
// protocol sees it. docs/formats.md describes the objects byte by byte.
//
// # Objects
//
//   - FORMAT says that there is a store. store init writes it once, after the bucket has
//     proven that it keeps conditional writes.
//   - cat/NAME is a partition of the catalog: a dataset's, or that of the protocol itself.
//     It is changed by conditional writes alone. The bytes contain its version and a nonce,
//     so that no two versions have the same ETag.
//   - bak/NAME is a copy of the partition as the last commit, drop or tag has left it, for
//     Rebuild.
//   - mem/ID is the row of a running process. It lapses by the server's clock.
//   - seg/PREFIX/NUMBER is a segment of an ingest: blobs, manifest pages, records. It is
//     written once.
//
// # Addresses
//
// A blob's key is its address (schema.ObjectAddress): prefix of the ingest, number of the
// segment, offset. So a key alone says where to read, and there is no index. A blob that
// is put twice is stored twice. A segment lives as long as a snapshot names its prefix, a
// selection's bitmap is stored under it, or its ingest may still commit.
//
// # Commits
//
// The blobs and pages of a snapshot are durable before its commit, which is one swap. A
// conditional write is never repeated, because it cannot distinguish its own success from
// that of another. If its answer is lost, package protocol loads the partition to find
// out. A segment is not such a write: its name belongs to one ingest, and its last bytes
// show whether it is complete.
//
// # Processes
//
// Each process writes its row every 30 s, because each write costs a request; with a
// database it is every 3 s. A collection waits about that long for running processes, and
// four minutes for one that has died.
package bucket
