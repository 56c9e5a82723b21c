// Package webp reads WebP: the container, and images without losses by a decoder of its own, which was made of
// golang.org/x/image/vp8l and gives the same pixels. Lossy images are decoded by golang.org/x/image/vp8.
//
// Data is hostile. A file of few bytes may have thousands of Huffman trees, and sizes of chunks that it does not have.
// So [Read] counts by the header what decoding takes, and [Decode] holds itself to it by a meter: what is beyond that is
// refused before it is allocated.
//
// The files that name the Go authors are under the license in the file LICENSE of this folder.
package webp
