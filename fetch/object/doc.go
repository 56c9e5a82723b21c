// Package object reads and writes objects of buckets: ranges into the caller's memory,
// whole objects, conditional writes, lists. It knows nothing of samples, stores or plans.
//
// [Bucket] is the contract. Its implementations are directories and, over one HTTP engine
// (remote.go), the dialects of S3 and compatible servers, Google Cloud Storage, Azure
// Blob Storage and plain web servers. Each passes the test suite in internal/objecttest.
// [Meter] counts and [Budget] paces the requests of a bucket.
//
// Requests are never repeated here. The reader above decides on attempts and hedges, and
// repeating a conditional write blindly may make it twice.
package object
