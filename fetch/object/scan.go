package object

import (
	"bytes"
	"errors"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// errXML reports that a text is not the simple XML that servers write. encoding/xml
// accepts all XML at ten times the cost: parsing a list of a million keys with it takes
// tens of seconds. So lists are scanned here first, and parsed by encoding/xml only if
// the scan fails.
var errXML = errors.New("no plain XML")

// scanXML calls visit for each element that contains only text, with the "/"-separated
// path of names to it, and for the end of each other element with its path. The path's
// memory is reused after visit returns, and text is part of body. It fails with errXML
// for anything that it does not understand: comments, CDATA, attributes other than xmlns
// on the root, or names with other than ASCII letters.
func scanXML(body []byte, visit func(path []byte, text []byte, leaf bool) error) error {
	path := make([]byte, 0, 128)
	leaf, ended := false, false // leaf: the element that was opened last has no other in it yet
	for {
		i := bytes.IndexByte(body, '<')
		if i < 0 {
			if !ended || len(bytes.TrimSpace(body)) > 0 {
				return errXML
			}
			return nil
		}
		text := body[:i]
		body = body[i+1:]
		j := bytes.IndexByte(body, '>')
		if j <= 0 {
			return errXML
		}
		tag := body[:j]
		body = body[j+1:]
		switch tag[0] {
		case '?':
			if len(path) > 0 || ended || !slices.Contains(prologs, string(tag)) || len(text) > 0 {
				return errXML
			}
			continue
		case '!': // comments, CDATA, DOCTYPE
			return errXML
		case '/':
			// An element ends. Its name must be that of the innermost open one.
			at := bytes.LastIndexByte(path, '/')
			if len(path) == 0 || !bytes.Equal(path[at+1:], tag[1:]) || !leaf && len(bytes.TrimSpace(text)) > 0 {
				return errXML
			}
			if err := visit(path, text, leaf); err != nil {
				return err
			}
			path, leaf = path[:max(at, 0)], false
			ended = len(path) == 0
			continue
		}
		// An element begins, with at most the attribute xmlns on the root.
		if ended || len(bytes.TrimSpace(text)) > 0 {
			return errXML // another root, or text beside elements
		}
		empty := tag[len(tag)-1] == '/'
		if empty {
			tag = tag[:len(tag)-1]
		}
		if name, attribute, found := bytes.Cut(tag, []byte(" ")); found {
			value, ok := bytes.CutPrefix(attribute, []byte(`xmlns="`))
			if value, ok2 := bytes.CutSuffix(value, []byte(`"`)); !ok || !ok2 || bytes.ContainsAny(value, `"&<`) ||
				len(path) > 0 {
				return errXML
			}
			tag = name
		}
		if len(tag) == 0 || bytes.ContainsFunc(tag, func(c rune) bool {
			return (c < 'A' || c > 'Z') && (c < 'a' ||
				c > 'z')
		}) {
			return errXML
		}
		at := len(path)
		if at > 0 {
			path = append(path, '/')
		}
		path = append(path, tag...)
		if leaf = !empty; empty {
			if err := visit(path, nil, true); err != nil {
				return err
			}
			path = path[:at]
			ended = at == 0
		}
	}
}

// prologs are the first lines that servers write.
var prologs = []string{`?xml version="1.0" encoding="UTF-8"?`, `?xml version='1.0' encoding='UTF-8'?`,
	`?xml version="1.0" encoding="utf-8"?`,
	`?xml version="1.0"?`}

// unescape replaces the entities of XML in a text: the five named ones, and characters by
// number. Other entities need a DTD.
func unescape(text []byte) (string, error) {
	if bytes.IndexByte(text, '&') < 0 {
		return string(text), nil
	}
	var b strings.Builder
	for s := string(text); ; {
		before, rest, found := strings.Cut(s, "&")
		b.WriteString(before)
		if !found {
			return b.String(), nil
		}
		name, rest, found := strings.Cut(rest, ";")
		if !found {
			return "", errXML
		}
		switch name {
		case "amp":
			b.WriteByte('&')
		case "lt":
			b.WriteByte('<')
		case "gt":
			b.WriteByte('>')
		case "quot":
			b.WriteByte('"')
		case "apos":
			b.WriteByte('\'')
		default:
			// The checks are those of XML 1.0 on characters, less the planes above the
			// first.
			digits, base := strings.TrimPrefix(name, "#"), 10
			if hex, ok := strings.CutPrefix(digits, "x"); ok {
				digits, base = hex, 16
			}
			n, err := strconv.ParseUint(digits, base, 21)
			if err != nil || !strings.HasPrefix(name, "#") || n < 0x20 && n != 9 && n != 10 && n != 13 || n > 0xFFFD ||
				n >= 0xD800 && n < 0xE000 {
				return "", errXML
			}
			b.WriteRune(rune(n))
		}
		s = rest
	}
}

// quickListing parses a page of S3's list, if it is simple XML. It must give what
// encoding/xml gives, or fail; a fuzz test compares the two.
func quickListing(body []byte) (*listing, error) {
	// XML reads a carriage return as the end of a line, and forbids other control
	// characters.
	if !utf8.Valid(body) || bytes.Contains(body, []byte("]]>")) || bytes.Contains(body, []byte("\xef\xbf")) ||
		bytes.ContainsFunc(body, func(c rune) bool { return c < ' ' && c != '\n' && c != '\t' }) {
		return nil, errXML
	}
	const root, contents, prefixes = "ListBucketResult", "ListBucketResult/Contents", "ListBucketResult/CommonPrefixes"
	l := &listing{}
	var entry listed
	var prefix string
	err := scanXML(body, func(path, text []byte, leaf bool) (err error) {
		switch string(path) {
		case root:
			l.XMLName.Local = root
		case contents:
			l.Contents = append(l.Contents, entry)
			entry = listed{}
		case prefixes:
			l.CommonPrefixes = append(l.CommonPrefixes, struct{ Prefix string }{prefix})
			prefix = ""
		}
		// Reads the text of an element that must have no other elements.
		read := func(to *string) {
			if !leaf {
				err = errXML
				return
			}
			*to, err = unescape(text)
		}
		switch string(path) {
		case contents + "/Key":
			read(&entry.Key)
		case contents + "/ETag":
			read(&entry.ETag)
		case contents + "/LastModified":
			read(&entry.LastModified)
		case contents + "/StorageClass":
			read(&entry.StorageClass)
		case contents + "/Size":
			entry.Size, err = strconv.ParseInt(string(text), 10, 64)
		case prefixes + "/Prefix":
			read(&prefix)
		case root + "/EncodingType":
			read(&l.EncodingType)
		case root + "/IsTruncated":
			l.IsTruncated, err = strconv.ParseBool(string(text))
		case root + "/NextContinuationToken":
			read(&l.NextContinuationToken)
		case root + "/NextMarker", root + "/Blobs", root + "/Code", root + "/Message":
			err = errXML // of another kind of document
		}
		return err
	})
	if err != nil || l.XMLName.Local != root {
		return nil, errXML
	}
	return l, nil
}
