// Package bucket keeps a store in a bucket, without a database: S3 and compatible servers, Google Cloud Storage, Azure
// Blob Storage, or a directory.
//
// # Objects
//
//   - FORMAT says that there is a store. store init writes it once, after it has proven that the bucket keeps conditions.
//   - cat/NAME is a partition of the catalog: a dataset's, or that of the protocol itself. It is changed by conditional
//     writes alone. Its version and a nonce are in the bytes, so that no two versions of it have one ETag.
//   - bak/NAME is a copy of the partition as a commit, a drop or a tag has left it, for Rebuild.
//   - mem/ID is the row of a process at work. It lapses by the clock of the server.
//   - seg/PREFIX/NUMBER is a segment of an ingest: blobs, manifest pages, records. It is written once.
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
// say whether it is whole.
//
// # Processes
//
// Each process writes its row every 30 s, where a database costs nothing at every 3 s. A collection waits about as long
// for the processes at work, and four minutes for one that has died.
package bucket
