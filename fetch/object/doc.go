// Package object reads and writes objects of buckets: ranges into memory of the caller, whole objects, conditional
// writes, lists. It knows nothing of samples, stores or plans.
//
// [Bucket] is the contract. Its implementations are dialects of one HTTP engine (S3 and compatible servers, Google
// Cloud Storage, Azure Blob Storage, plain web servers) and directories. Each passes the suite in
// internal/objecttest. Requests are never repeated here: attempts and hedges are decided by the reader above, and a
// conditional write that is repeated blindly may be made twice.
package object
