package object

import "strconv"

// Number returns kube-apiserver's version of an object as a number, 0 if it is not one. Since
// Kubernetes 1.35 resource versions can be compared as numbers (KEP-5504).
func Number(version string) uint64 {
	n, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// Older reports whether kube-apiserver's version a is older than b. Where one is no number, they
// are only equal or not.
func Older(a, b string) bool {
	x, y := Number(a), Number(b)
	if x == 0 || y == 0 {
		return a != b
	}
	return x < y
}
