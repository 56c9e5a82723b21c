//go:build !race

package images

const underRace = false
