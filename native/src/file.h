/* file.h: bytes between files and memory, for a transfer thread; nothing here is shared. */
#ifndef RDX_FILE_H
#define RDX_FILE_H
#include "rdx.h"

#define RDX_FILE_PARTS_MAX (RDX_PIECE_BYTES / 4096) /* moved at a time */

/* Moves bytes [begin, end) of the first part, or, where there are several, each of them whole: they
 * lie one behind the other in one file. The status of each, and the bytes that were moved. */
void rdx_file_move(const rdx_op *ops, uint32_t parts, uint64_t begin, uint64_t end, int *statuses,
                   uint64_t *moved);
/* fdatasync. */
int rdx_file_sync(int fd);
#endif
