// Package journal keeps a command's output: append-only, on disk, one offset
// space for both streams, with a directory for each command.
//
// A journal is a row of segment files named by the offset of their first byte.
// When its limit is reached the oldest segments but the first go, so that head
// and tail stay; which bytes went is told by the names of what is left, so no
// crash can make the two disagree. Followers read the files and wait on a
// broadcast, never on a queue of their own: one that is slow or dead costs
// nothing but its descriptor.
//
// It knows no command and no protocol, and it does not split UTF-8: frames carry
// whole bytes as they came.
package journal
