mod carry;
mod memory_check;
