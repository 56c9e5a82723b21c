package schema

import "os"

// Extent is where a blob's bytes lie in a file. It holds as long as the blob is held: afterwards the file may be
// closed, and other bytes may lie there. Meanwhile the bytes stay as they are, even if the file has lost its name.
type Extent struct {
	// File is open for reading at least. It belongs to the blob's owner: it must not be closed, written to or
	// truncated.
	File *os.File
	// Offset and Length are in bytes. Length is that of the blob.
	Offset, Length int64
	// Limit is how long the file may become. It is never shortened below the end of a blob that is held. It is 0 where
	// nobody else may be given the file.
	Limit int64
}

// Locator is an Owner whose blobs may lie in files.
type Locator interface {
	Owner
	// Extent returns where the bytes of a blob that is held lie, of which this is the owner; false if they lie in no
	// file.
	Extent(data []byte) (Extent, bool)
}

// Unchecker is an Owner whose blobs may not have been compared with their reference yet.
type Unchecker interface {
	Owner
	// Unchecked reports whether whoever uses the bytes has to compare them first.
	Unchecked() bool
}

// Unchecked reports whether the bytes have not been compared with the reference. It must not be asked for after
// Release.
func (b *Blob) Unchecked() bool {
	u, ok := b.owner.(Unchecker)
	return ok && u.Unchecked()
}

// Extent returns where the blob's bytes lie; false if they lie in no file, or in none that is known, as those of an
// empty blob. It holds until the blob is released, and must not be asked for afterwards.
func (b *Blob) Extent() (Extent, bool) {
	if l, ok := b.owner.(Locator); ok {
		return l.Extent(b.data)
	}
	return Extent{}, false
}
