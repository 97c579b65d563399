// Package authority keeps Flowkeep's certificate authority in a Secret of the cluster, netmaster's own certificate in memory, and gives
// nodes theirs for a token that the API server vouches for. docs/certificates.md tells how it is used, docs/decisions/020 why it is so.
//
// State and its steps are plain values: what is to be, now. Keeper reads and writes them, and any number of them may do so at a time: each
// write is refused by the API server if something else was written since what it builds on was read. Door is what nodes ask.
package authority
