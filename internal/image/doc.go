// Package image keeps images as directories: each an unpacked root file system that
// only root, or the user of a rootless server, enters. It unpacks archives that nobody
// has looked at, says what there is, and lets go of none that is in use.
//
// It runs nothing and mounts nothing; what a sandbox sees of an image is
// internal/isolate/setup's business. It knows no registry and no layers.
package image
