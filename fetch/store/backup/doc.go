// Package backup keeps copies of stores in directories of plain files: tars of
// blobs, an index of each in lines of text, and a catalog in JSON for each
// generation. docs/formats.md describes them; tar, sha256sum and a reader of JSON
// are enough to get everything out.
//
// A generation is what there was at one time. It is incremental: a blob that some
// pack has is not written again. It appears by the renaming of its catalog, after
// everything it names is on stable storage, so that a backup that is killed leaves
// the earlier generations whole, and the packs it finished to the next one.
//
// A generation that was opened is a [tend.Source]: it is verified, and copied back
// into a store, as a store is. The package knows no store in particular.
package backup
