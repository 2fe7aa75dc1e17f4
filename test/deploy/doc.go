// Package deploy tests what is shipped beside the binary: the compose file, the image,
// the systemd unit and the scripts of the Makefile. It has no code of its own.
package deploy
