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
// A blob's key is its address (schema.ObjectAddress): prefix of the ingest, number of the segment, offset. So a key
// alone says where to read, and there is no index. A blob that is put twice lies there twice. A segment lives as long as
// a snapshot names its prefix, a selection's bitmap lies under it, or its ingest may still commit.
//
// # Commits
//
// What a snapshot refers to is durable before its commit, which is one swap. A conditional write is never repeated: it
// could not tell its own success from that of another. Where its answer is lost, package protocol loads the partition
// and looks. A segment is no such write: its name belongs to one ingest, and whether what is there is the segment, its
// last bytes tell.
//
// # Processes
//
// Each process writes its row every 30 s, where a database costs nothing at every 3 s. A collection waits about as long
// for the processes at work, and four minutes for one that has died.
package bucket
