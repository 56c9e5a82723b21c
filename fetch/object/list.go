package object

import (
	"encoding/xml"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"bowstring/schema"
)

// page is a page of a list: its entries in ascending order of keys, and the token of the
// next page; "" after the last.
type page struct {
	entries []Info
	next    string
}

// listing is a page as servers write it: ListBucketResult of S3, version 2, or
// EnumerationResults of Azure.
type listing struct {
	XMLName               xml.Name
	EncodingType          string
	IsTruncated           bool
	NextContinuationToken string
	Contents              []listed
	CommonPrefixes        []struct{ Prefix string }
	Code, Message         string // if it is an error
	// Of Azure's form.
	NextMarker string
	Blobs      struct {
		Blob []struct {
			Name       nameAzure
			VersionID  string `xml:"VersionId"`
			Properties struct {
				Etag          string
				LastModified  string `xml:"Last-Modified"`
				ContentLength int64  `xml:"Content-Length"`
				AccessTier    string
				ResourceType  string
			}
		}
		BlobPrefix []struct{ Name nameAzure }
	}
}

// listed is an object in a page of S3.
type listed struct {
	Key, ETag, LastModified, StorageClass string
	Size                                  int64
}

// nameAzure is a blob's name. Azure percent-encodes names with characters that XML cannot
// represent.
type nameAzure struct {
	Encoded bool   `xml:"Encoded,attr"`
	Text    string `xml:",chardata"`
}

func (n nameAzure) key() (string, error) {
	if n.Encoded {
		return url.PathUnescape(n.Text)
	}
	return n.Text, nil
}

// parseXML parses a page of S3 or Azure. The fast parser handles S3's pages, which may
// list millions of keys.
func parseXML(body []byte, date time.Time) (page, error) {
	l, err := quickListing(body)
	if err != nil {
		l = &listing{}
		if err := xml.Unmarshal(body, l); err != nil {
			return page{}, err
		}
	}
	switch l.XMLName.Local {
	case "ListBucketResult":
		return l.s3(date)
	case "EnumerationResults":
		return l.azure(date)
	case "Error":
		return page{}, fmt.Errorf("it is the error %s (%s)", l.Code, l.Message)
	}
	return page{}, fmt.Errorf("it is the element %s of XML", l.XMLName.Local)
}

// s3 converts a page of S3. Prefixes and objects are separate there.
func (l *listing) s3(date time.Time) (page, error) {
	p := page{entries: make([]Info, 0, len(l.Contents)+len(l.CommonPrefixes))}
	decode := func(s string) (string, error) { return s, nil }
	if l.EncodingType == "url" {
		decode = url.QueryUnescape
	}
	for i := range l.Contents {
		c := &l.Contents[i]
		key, err := decode(c.Key)
		if err != nil {
			return page{}, err
		}
		modified, err := time.Parse(time.RFC3339Nano, c.LastModified)
		if err != nil {
			return page{}, err
		}
		p.entries = append(p.entries, Info{Key: key, Size: c.Size, Modified: modified, Date: date,
			Class:   class(c.StorageClass),
			Version: schema.ObjectVersion{ETag: unquote(c.ETag)}})
	}
	for _, c := range l.CommonPrefixes {
		key, err := decode(c.Prefix)
		if err != nil {
			return page{}, err
		}
		p.entries = append(p.entries, Info{Key: key, Prefix: true, Date: date})
	}
	p.merge(len(l.Contents))
	if l.IsTruncated {
		// Without this check a truncated list would look complete, and an import would
		// lack objects.
		if p.next = l.NextContinuationToken; p.next == "" {
			return page{}, errors.New("it is not the last one, and has no token for the next")
		}
	}
	return p, nil
}

// azure converts a page of Azure.
func (l *listing) azure(date time.Time) (page, error) {
	p := page{entries: make([]Info, 0, len(l.Blobs.Blob)+len(l.Blobs.BlobPrefix)), next: l.NextMarker}
	for i := range l.Blobs.Blob {
		b := &l.Blobs.Blob[i]
		key, err := b.Name.key()
		if err != nil {
			return page{}, err
		}
		modified, err := time.Parse(time.RFC1123, b.Properties.LastModified)
		if err != nil {
			return page{}, err
		}
		p.entries = append(p.entries, Info{Key: key, Size: b.Properties.ContentLength, Modified: modified, Date: date,
			Class: class(b.Properties.AccessTier), Version: schema.ObjectVersion{ETag: unquote(b.Properties.Etag)}})
	}
	for _, b := range l.Blobs.BlobPrefix {
		key, err := b.Name.key()
		if err != nil {
			return page{}, err
		}
		p.entries = append(p.entries, Info{Key: key, Prefix: true, Date: date})
	}
	p.merge(len(l.Blobs.Blob))
	return p, nil
}

// merge merges objects and prefixes, each in ascending order, into one order. If the
// server has them in another order they stay as they are, and List refuses them.
func (p *page) merge(objects int) {
	byKey := func(a, b Info) int { return strings.Compare(a.Key, b.Key) }
	if objects < len(p.entries) && slices.IsSortedFunc(p.entries[:objects], byKey) &&
		slices.IsSortedFunc(p.entries[objects:], byKey) {
		slices.SortFunc(p.entries, byKey)
	}
}

// unquote removes the quotes of an ETag. A weak ETag keeps its mark "W/".
func unquote(etag string) string {
	if len(etag) >= 2 && etag[0] == '"' && etag[len(etag)-1] == '"' {
		return etag[1 : len(etag)-1]
	}
	return etag
}

// quote is an ETag in the form of headers.
func quote(etag string) string {
	if strings.HasPrefix(etag, "W/") {
		return etag
	}
	return `"` + etag + `"`
}
