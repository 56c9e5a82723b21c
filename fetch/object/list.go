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

// page is one of a list: its entries in ascending order of keys, and how to ask for the next one; "" after the last.
type page struct {
	entries []Info
	next    string
}

// listing is a page as it comes: ListBucketResult of S3, version 2, or EnumerationResults of Azure.
type listing struct {
	XMLName               xml.Name
	EncodingType          string
	IsTruncated           bool
	NextContinuationToken string
	Contents              []listed
	CommonPrefixes        []struct{ Prefix string }
	Code, Message         string // where it is an error
	// Azure has it so.
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

// nameAzure is a blob's name; one with characters that XML cannot have is percent-encoded.
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

// parseXML reads a page of S3 or Azure.
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
		if p.next = l.NextContinuationToken; p.next == "" {
			return page{}, errors.New("it is not the last one, and has no token for the next")
		}
	}
	return p, nil
}

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

// merge puts objects and prefixes, each in ascending order, into one. Where the server has them in another order they
// stay so, which List then refuses.
func (p *page) merge(objects int) {
	byKey := func(a, b Info) int { return strings.Compare(a.Key, b.Key) }
	if objects < len(p.entries) && slices.IsSortedFunc(p.entries[:objects], byKey) &&
		slices.IsSortedFunc(p.entries[objects:], byKey) {
		slices.SortFunc(p.entries, byKey)
	}
}

// unquote takes the quotes off an ETag. A weak one keeps its mark.
func unquote(etag string) string {
	if len(etag) >= 2 && etag[0] == '"' && etag[len(etag)-1] == '"' {
		return etag[1 : len(etag)-1]
	}
	return etag
}

// quote is an ETag as headers have it.
func quote(etag string) string {
	if strings.HasPrefix(etag, "W/") {
		return etag
	}
	return `"` + etag + `"`
}
