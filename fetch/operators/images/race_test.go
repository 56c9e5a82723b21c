//go:build race

package images

const underRace = true
